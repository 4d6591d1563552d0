"""Central's answers by HTTP beside its OpenAPI document: schemathesis asks, with right and wrong values of all kinds.

openapi_checks.toml has the checks that are off, and why.
"""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.support.page_fleet import PageCentral, Size

pytestmark = pytest.mark.integration

CHECKS = Path(__file__).parent / "openapi_checks.toml"
SEED = 1


async def ask(url: str, folder: Path, examples: int) -> str:
    """What schemathesis says after so many examples of each path; the assertion that it found nothing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CHECKS), "run", f"{url}openapi.json",
        f"--seed={SEED}", f"--max-examples={examples}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder,
    )  # fmt: skip
    output, _ = await process.communicate()
    said = output.decode()
    assert process.returncode == 0, said[-20_000:]
    return said


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_central_answers_as_its_document_says(tmp_path):
    async with PageCentral(tmp_path, Size(hosts=3)) as central:
        said = await ask(central.url, tmp_path, examples=100)
    selected, of_all = re.findall(r"(\d+) selected / (\d+) total", said)[0]
    assert selected == of_all
    assert int(re.findall(r"(\d+) generated", said)[0]) > 1000
    assert not re.search(r"(?i)error|failed", said.rpartition("SUMMARY")[2]), said[-5000:]
