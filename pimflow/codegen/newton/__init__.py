"""Newton-style PIM: mappings, command streams as loop nests, and their text form."""

from pimflow.codegen.newton.commands import CommandCounts, CommandStream, count_commands
from pimflow.codegen.newton.lowering import PimProgram, StreamClass, lower
from pimflow.codegen.newton.mapping import ChannelGroup, ChunkRun, Mapping, Share
from pimflow.codegen.newton.published import newton_mappings

__all__ = [
    "ChannelGroup",
    "ChunkRun",
    "CommandCounts",
    "CommandStream",
    "Mapping",
    "PimProgram",
    "Share",
    "StreamClass",
    "count_commands",
    "lower",
    "newton_mappings",
]
