"""All options of a compilation, each defined once with its type, limits, default and spelling.

The rest of the compiler reads `Options`. Its fields define the arguments of the command line (`cli/options.py`), the
keywords of `pimflow.compile`, the contents of config.json in an output folder, and the tables of docs/cli.md. To add an
option, add a field to `Options` and its keyword to `OptionKeywords`, and read it where it matters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from pimflow.data import NOT_DATA, Limits, Number, number_in_words, read_argument
from pimflow.errors import ArgumentError, OptionError, kind_of
from pimflow.records import dataclass
from pimflow.targets import DEFAULT_TARGET, Target, load_target

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_POLICY = "auto"
MAX_STAGES = 64
CLI_TIME_BUDGET_S = 60.0
"""The default time limit of a search started from the command line, in seconds."""
SEARCH, DEBUGGING = "search", "debugging"
"""Groups of options in the help of the command line."""

Shapes = Mapping[str, tuple[int, ...] | int]
Fixed = Mapping[str, Number | tuple[Number, ...]]
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class OptionText:
    """The name and meaning of an option, for the command line and the docs.

    Args:
        help: what it does, as one clause.
        flag: its spelling on the command line; "" if it has none. "--no-..." turns off an option that is on by default.
        metavar: the placeholder for its value in help texts.
        group: its group in the help; "" for the first.
        short: its one-letter spelling; "" if it has none.
        cli_default: its default on the command line, if that differs from the field's.
    """

    help: str
    flag: str = ""
    metavar: str = ""
    group: str = ""
    short: str = ""
    cli_default: float | None = None


def _meta(
    help: str,
    flag: str = "",
    metavar: str = "",
    group: str = "",
    *,
    short: str = "",
    cli_default: float | None = None,
    saved: bool = True,
) -> Mapping[str, Any]:
    """The metadata of an option's field. `saved` says whether an output folder stores the option."""
    return {"text": OptionText(help, flag, metavar, group, short, cli_default), **({} if saved else NOT_DATA)}


@dataclass(frozen=True)
class Debug:
    """What to print and check between passes.

    Raises (when made):
        ArgumentError: `show` cannot be called.
        OptionError: another value has the wrong type.
    """

    print_before: tuple[str, ...] = field(
        default=(), metadata=_meta("print the graph before this pass", "--print-ir-before", "PASS", DEBUGGING)
    )
    print_after: tuple[str, ...] = field(
        default=(), metadata=_meta("print the graph after this pass", "--print-ir-after", "PASS", DEBUGGING)
    )
    print_after_all: bool = field(
        default=False, metadata=_meta("print the graph after every pass", "--print-ir-after-all", group=DEBUGGING)
    )
    print_times: bool = field(
        default=False, metadata=_meta("print how long every pass took", "--print-pass-times", group=DEBUGGING)
    )
    verify_each: bool = field(
        default=False,
        metadata=_meta(
            "run ONNX Runtime after every pass and name the first pass that changed a value",
            "--verify-each",
            group=DEBUGGING,
        ),
    )
    show: Callable[[str], None] | None = field(default=None, metadata=_meta("receives what would be printed to stderr"))

    def __post_init__(self) -> None:
        for name, form in option_forms(Debug).items():
            if name != "show":
                object.__setattr__(self, name, read_argument(name, form, getattr(self, name)))
        if self.show is not None and not callable(self.show):
            raise ArgumentError(f"'show' is {kind_of(self.show)}", "give a function that takes one string")


@dataclass(frozen=True)
class Options:
    """The options of one compilation; None stands for the policy's or the target's own default.

    An output folder stores all of them except the target, which has its own file, and those that do not affect the
    result.

    Raises (when made):
        OptionError: a value has the wrong type or is out of range.
    """

    target: Target = field(
        default_factory=lambda: load_target(DEFAULT_TARGET),
        metadata=_meta("machine to compile for", "--target", "NAME|FILE.toml", saved=False),
    )
    policy: str = field(default=DEFAULT_POLICY, metadata=_meta("search policy", "--policy", "P"))
    objective: Literal["latency", "throughput", "energy"] = field(
        default="latency",
        metadata=_meta("what to optimise: latency, throughput or energy", "--objective", "O"),
    )
    shapes: Shapes = field(
        default_factory=dict,
        metadata=_meta("bind an input's shape or a symbolic dimension", "--shape", "input:1x3x224x224|N=1"),
    )
    fixed: Fixed = field(
        default_factory=dict,
        metadata=_meta("replace an input by a constant", "--fix", "input=16000|input=true"),
    )
    graph: Any = field(
        default=None,
        metadata=_meta("the graph that a graph network runs on", "--graph", "FILE", saved=False),
    )
    graph_as_input: bool = field(
        default=False,
        metadata=_meta(
            "keep the edges an input of the compiled model, so that every run may have another graph",
            "--graph-as-input",
        ),
    )
    relations: Literal["auto", "always", "never"] = field(
        default="auto",
        metadata=_meta(
            "rewrite relational layers: auto (where that is cheaper), always or never",
            "--relations",
            "WHEN",
            SEARCH,
        ),
    )
    tables: Literal["auto", "gpu", "host", "zero-copy", "aligned"] = field(
        default="auto",
        metadata=_meta(
            "where to keep large tables: auto (on the GPU if they fit), gpu, host (gathered), zero-copy or aligned",
            "--tables",
            "WHERE",
            SEARCH,
        ),
    )
    spill: Literal["auto", "never", "offload", "recompute"] = field(
        default="auto",
        metadata=_meta(
            "how to handle activations that do not fit: auto (the fastest way), never, offload (to SSDs) or recompute",
            "--spill",
            "WAY",
            SEARCH,
        ),
    )
    grid: Annotated[int, Limits(least=1, most=50)] | None = field(
        default=None,
        metadata=_meta("step between MD-DP split ratios, in percent", "--grid", "PERCENT", SEARCH),
    )
    stages: tuple[Annotated[int, Limits(least=2, most=MAX_STAGES)], ...] | None = field(
        default=None, metadata=_meta("pipeline stage counts to try", "--stages", "N[,N...]", SEARCH)
    )
    time_budget_s: Annotated[float, Limits(least=0)] | None = field(
        default=None,
        metadata=_meta(
            "stop searching after this many seconds and use the best plan found so far",
            "--time-budget",
            "S|none",
            SEARCH,
            cli_default=CLI_TIME_BUDGET_S,
        ),
    )
    disabled_passes: tuple[str, ...] = field(
        default=(), metadata=_meta("passes to skip, by name", "--disable-pass", "PASS", DEBUGGING)
    )
    convolutions: Literal["library", "fastest", "im2col", "im2win", "direct"] | None = field(
        default=None,
        metadata=_meta(
            "convolutions on the GPU: library, fastest, im2col, im2win or direct; by default what the target says",
            "--convolutions",
            "WAY",
            SEARCH,
        ),
    )
    workspace_mib: Annotated[float, Limits(least=0)] | None = field(
        default=None,
        metadata=_meta(
            "most memory that a convolution may use beyond its operands, in MiB", "--workspace", "MIB", SEARCH
        ),
    )
    seed: Annotated[int, Limits(least=0)] = field(default=0, metadata=_meta("seed of random inputs", "--seed", "N"))
    use_cache: bool = field(
        default=True, metadata=_meta("use the price cache on disk", "--no-cache", group=SEARCH, saved=False)
    )
    profile: str | None = field(
        default=None,
        metadata=_meta(
            "table of measured kernel times to use instead of the GPU model's", "--profile", "TABLE.csv", SEARCH
        ),
    )
    check: bool = field(
        default=True,
        metadata=_meta("run the original and the written model once each", "--no-check", saved=False),
    )
    jobs: Annotated[int, Limits(least=1)] | None = field(
        default=None,
        metadata=_meta("tasks to run at once; by default one per core", "--jobs", "N", short="-j", saved=False),
    )
    debug: Debug = field(
        default_factory=Debug, metadata=_meta("what to show and check between passes", group=DEBUGGING, saved=False)
    )

    def __post_init__(self) -> None:
        if not isinstance(self.target, Target):
            raise ArgumentError(f"'target' is {kind_of(self.target)}", "give a pimflow.Target, or use Options.of")
        if not isinstance(self.debug, Debug):
            raise ArgumentError(f"'debug' is {kind_of(self.debug)}", "give a pimflow.Debug")
        for name, form in (_saved_forms() | _unsaved_forms()).items():
            read_argument(name, form, getattr(self, name))
        if self.stages is not None and not self.stages:
            raise OptionError("'stages' is empty", "give one number of stages or more, or leave it out")
        object.__setattr__(self, "fixed", {name: _in_words(given) for name, given in self.fixed.items()})

    @classmethod
    def of(cls, **keywords: Unpack[OptionKeywords]) -> Options:
        """Options from values as a caller writes them: lists for tuples, a target's name, paths, None for a default.

        Raises:
            OptionError: a value has the wrong type or is out of range.
            TargetError: there is no such target, or its file is not valid.
            GraphDataError: the graph cannot be read, or is not a graph.
        """
        given: dict[str, Any] = {name: value for name, value in keywords.items() if value is not None}
        if "target" in given:
            given["target"] = load_target(given["target"])
        if "graph" in given:
            given["graph"] = graph_of(given["graph"])
        forms = _saved_forms() | _unsaved_forms()
        read = {name: read_argument(name, form, given[name]) for name, form in forms.items() if name in given}
        return cls(**given | read)


class OptionKeywords(TypedDict, total=False):
    """The keywords of `pimflow.compile`; each means the same as the field of that name in `Options`."""

    target: str | Path | Target
    policy: str
    objective: str
    shapes: Shapes | None
    fixed: Fixed | None
    graph: Any
    graph_as_input: bool
    relations: str
    tables: str
    spill: str
    grid: int | None
    stages: Sequence[int] | None
    time_budget_s: float | None
    disabled_passes: Sequence[str]
    convolutions: str | None
    workspace_mib: float | None
    seed: int
    use_cache: bool
    profile: str | Path | None
    check: bool
    jobs: int | None
    debug: Debug | None


def _in_words(given: Number | tuple[Number, ...]) -> Number | tuple[Number, ...]:
    """The same, with words for infinities and NaN."""
    return tuple(map(number_in_words, given)) if isinstance(given, tuple) else number_in_words(given)


def graph_of(given: object) -> Any:
    """Convert `given` to a `pimflow.sparse.Graph`: a Graph, a file, a scipy or PyTorch Geometric object, or arrays by
    name.

    Raises:
        GraphDataError: it cannot be read, or is not a graph.
        OptionError: it has another type.
    """
    from pimflow.sparse import Graph as Adjacency  # imported here, so that code without a graph does not wait for numpy

    if isinstance(given, Adjacency):
        return given
    if isinstance(given, (str, Path)):
        return Adjacency.load(given)
    if isinstance(given, Mapping):
        return Adjacency.from_mapping(given)
    if hasattr(given, "edge_index_dict"):
        return Adjacency.from_edge_lists(given.edge_index_dict)
    if hasattr(given, "edge_index"):
        return Adjacency.from_pyg(given)
    if hasattr(given, "tocoo"):
        return Adjacency.from_scipy(given)
    raise OptionError(
        f"'graph' is {kind_of(given)}",
        "give a file, a pimflow.sparse.Graph, a sparse matrix of scipy's, a Data or HeteroData of PyTorch Geometric's "
        "or edge lists by name",
    )


def option_texts(cls: type[Any] = Options) -> dict[str, OptionText]:
    """The names and meanings of the options of a class, by field name."""
    return {f.name: f.metadata["text"] for f in fields(cls)}


@cache
def option_forms(cls: Any = Options) -> dict[str, Any]:
    """The types of the options of a class, with their limits, by field name."""
    return get_type_hints(cls, include_extras=True)


def cli_words(values: Mapping[str, Any]) -> list[str]:
    """Options as command-line words, from plain values by name."""
    return [word for name, value in values.items() for word in _flag_words(option_texts()[name].flag, value)]


def _flag_words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool) or value is None:
        return [flag] if value is not None and value is not flag.startswith("--no-") else []
    if isinstance(value, Mapping):
        spell = _shape_text if flag == option_texts()["shapes"].flag else _value_text
        return [word for key, entry in value.items() for word in (flag, spell(key, entry))]
    if isinstance(value, (list, tuple)):
        return [flag, ",".join(map(str, value))]
    return [flag, str(value)]


def _shape_text(name: str, size: Any) -> str:
    return f"{name}={size}" if isinstance(size, int) else f"{name}:{'x'.join(map(str, size))}"


def _value_text(name: str, value: Any) -> str:
    return f"{name}={','.join(str(number) for number in (value if isinstance(value, (list, tuple)) else (value,)))}"


def saved_options() -> tuple[str, ...]:
    """The names of the options that are stored as plain data."""
    return tuple(_saved_forms())


def _saved_forms() -> dict[str, Any]:
    """The types of the options that are stored as plain data, by name."""
    return {f.name: option_forms()[f.name] for f in fields(Options) if f.metadata.get("data", True)}


def _unsaved_forms() -> dict[str, Any]:
    """The types of the options that are plain data too, but not stored, by name."""
    return {name: option_forms()[name] for name in ("use_cache", "check", "jobs")}


_MARK = "options: "


def takes_options(*without: str) -> Callable[[F], F]:
    """Spell out the options of a function that takes them as `**options`, in its signature and its docstring.

    Their meanings replace the docstring's line "options: ...", which must be a single line. Options named in `without`
    are left out, since the function does not take them.
    """
    taken = {name: text for name, text in option_texts().items() if name not in without}

    def spell_out(function: F) -> F:
        signature = inspect.signature(function)
        hints = OptionKeywords.__annotations__
        named = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=_source(hints[f.name])
            )
            for f in fields(Options)
            if f.name in taken
        ]
        function.__signature__ = signature.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join(_expanded(line, taken) for line in (function.__doc__ or "").split("\n"))
        return function

    return spell_out


def _expanded(line: str, taken: Mapping[str, OptionText]) -> str:
    """A docstring line. The one about options becomes one line per option, with the same indentation (Python 3.13
    strips common indentation)."""
    text = line.lstrip()
    if not text.startswith(_MARK):
        return line
    blanks = line[: len(line) - len(text)]
    return "\n".join(f"{blanks}{name}: {meaning.help}." for name, meaning in taken.items())


def _default(option: Field[Any]) -> Any:
    """The default that a signature shows; None stands for a default that is made anew for each call."""
    return None if option.default is MISSING else option.default


def _source(hint: Any) -> Any:
    """An annotation as written in the source."""
    return getattr(hint, "__forward_arg__", hint)
