"""The folder that caches results between runs."""

from pimflow.cache.folder import STATISTICS_SUFFIX as STATISTICS_SUFFIX
from pimflow.cache.folder import cache_folder as cache_folder
