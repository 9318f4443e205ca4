"""One strict codec for frozen dataclasses and named tuples: to the plain data that JSON and TOML hold, and back.

Either becomes a mapping of its fields; any other tuple becomes a list; numbers, text, booleans and None stay the same.
With `tagged`, every such mapping has its class's name under "type", so that a field may hold one of several classes.

Reading follows the types of the fields and is strict. An unknown or missing key, or a value of the wrong type or
outside its `Limits`, is a `DataError` that names the path to it, as in 'pim.timing.strict.t_faw' or 'gpu.tiles[0]'.
`open_file` and `read_file` read the files that such data come from; `read_argument` reads what callers in Python write.

The types are those that plain data can hold: bool, int, float, str, None, Literal, tuples, mappings with text keys,
dataclasses, named tuples, unions of these, and Any. An integer is accepted as a float, and stays an integer where both
are allowed; True is not a number. A class whose keys depend on its data provides its own conversion,
`from_data(data, read)` and `to_data()`.
"""

from pimflow.data.decoding import Nested, decode, is_readable, not_among, pick, read_argument, take, unknown
from pimflow.data.encoding import encode, encode_json, json_text, number_in_words, record_form
from pimflow.data.files import is_folder, open_file, read_file
from pimflow.data.forms import NOT_DATA, TAG, Limits, Number, Table

__all__ = [
    "NOT_DATA",
    "TAG",
    "Limits",
    "Nested",
    "Number",
    "Table",
    "decode",
    "encode",
    "encode_json",
    "is_folder",
    "is_readable",
    "json_text",
    "not_among",
    "number_in_words",
    "open_file",
    "pick",
    "read_argument",
    "read_file",
    "record_form",
    "take",
    "unknown",
]
