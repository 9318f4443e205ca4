"""Mapping of matrix work onto PIM channels, command streams as loop nests, and their text form."""

from pimflow.codegen.lowering import PimProgram, StreamClass, lower
from pimflow.codegen.mapping import ChannelGroup, ChunkRun, Mapping, Share
from pimflow.codegen.newton import newton_mapping, newton_mappings
from pimflow.codegen.problem import ConvProblem, MatmulProblem, PimProblem, Refusal, problem_of
from pimflow.codegen.stream import CommandCounts, CommandStream, count_commands

__all__ = [
    "ChannelGroup",
    "ChunkRun",
    "CommandCounts",
    "CommandStream",
    "ConvProblem",
    "Mapping",
    "MatmulProblem",
    "PimProblem",
    "PimProgram",
    "Refusal",
    "Share",
    "StreamClass",
    "count_commands",
    "lower",
    "newton_mapping",
    "newton_mappings",
    "problem_of",
]
