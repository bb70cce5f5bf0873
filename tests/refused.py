"""What the tests assert of each row in a table of refusals."""

import re

import pytest

import spgrad


def assert_refused(call, says):
    """Asserts that a call raises an error of spgrad that has these words."""
    with pytest.raises(spgrad.SpgradError, match=re.escape(says)):
        call()
