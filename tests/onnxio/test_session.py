"""Sessions of ONNX Runtime: what they are opened with."""

from __future__ import annotations

import pytest

from pimflow.onnxio.session import session_options


@pytest.mark.parametrize("optimise", [True, False])
def test_threads_that_wait_for_work_sleep(optimise: bool) -> None:
    options = session_options(optimise=optimise)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.intra_op_num_threads == 2
