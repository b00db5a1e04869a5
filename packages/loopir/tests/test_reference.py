"""The vocabulary is small, and its reference page says what it is."""

import subprocess
import sys
from pathlib import Path

from loopir import OPS


def test_vocabulary_is_small():
    assert len(OPS) <= 55


def test_reference_page_is_current():
    script = Path(__file__).parents[3] / "tools" / "loopir_reference.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)
