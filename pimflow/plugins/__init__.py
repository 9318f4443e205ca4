"""Plugins of other installed packages, from their entry points: found by name, and imported only when used."""

from pimflow.plugins.entries import BACKENDS as BACKENDS
from pimflow.plugins.entries import PASSES as PASSES
from pimflow.plugins.entries import POLICIES as POLICIES
from pimflow.plugins.entries import TARGETS as TARGETS
from pimflow.plugins.entries import Plugin as Plugin
from pimflow.plugins.entries import PluginWarning as PluginWarning
from pimflow.plugins.entries import find as find
from pimflow.plugins.entries import load_all as load_all
from pimflow.plugins.entries import names as names
from pimflow.plugins.fingerprint import fingerprint as fingerprint
