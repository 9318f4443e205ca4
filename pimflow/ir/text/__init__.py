r"""The text form of the IR: readable, exact, and parsed back to an equal graph.

```
graph @toy opset {"" = 17} {
  input %x : float32[1, 3, 16, 16]
  const %w = float32[64, 3, 1, 1] #5bf0a1d20c7e9943          // elided: content hash
  const %b = float32[2] [0.5, -1.25]                          // inline: elements in row-major order
  %y = Conv2d(%x, %w, _) {kernel = [1, 1]} : float32[1, 64, 16, 16] @conv1 on pim {region = 0}
  output %y
}
```

Grammar (`//` starts a comment, white space is ignored):

```
graph    = "graph" SYMBOL "opset" "{" KEY "=" INT, ... "}" "{" line* "}"
line     = "input" VALUE ":" type | "const" VALUE "=" type (list | HASH) [":" type] | "value" VALUE ":" type
         | "output" VALUE | node
node     = (VALUE | "_"), ... "=" OP "(" (VALUE | "_"), ... ")" [pairs] [":" type, ...]
           SYMBOL ["on" KEY] [pairs] ["tags" pairs]
type     = (KEY | "?") "[" (INT, ... | "*") "]" | "missing"
field    = INT | FLOAT | STRING | BYTES | "true" | "false" | "none" | list | pairs | CLASS [pairs]
list     = "[" field, ... "]"            pairs = "{" KEY "=" field, ... "}"
```

VALUE is `%name` and SYMBOL `@name`, the name in JSON's quotes if it has other characters than `A-Za-z0-9_./$:-`;
`_` is an absent optional input or output. The device follows `on`; the pairs after it are the other fields of
`Placement`. An op's fields are those of its dataclass; fields at their default are left out. `: type` after a constant
says that the value's type is not the array's. Floats without a decimal form (NaNs with a payload) are written as bits,
0x7fc00001.
"""

from __future__ import annotations

from pimflow.ir.text.parser import parse_graph
from pimflow.ir.text.printer import INLINE_ELEMENTS, graph_lines, node_line, print_graph

__all__ = [
    "INLINE_ELEMENTS",
    "graph_lines",
    "node_line",
    "parse_graph",
    "print_graph",
]
