"""The page's files: complete, nothing foreign in them, and served so that a browser lets nothing foreign in."""

import asyncio
import gzip
import http.client
import re
from pathlib import PurePosixPath

import pytest

from central.authorisation.roles import Access
from central.page.files import POLICY, read_files
from central.web.server import HttpApi
from tests.unit.central.web.test_http_api import Served
from whitepanda.common.tls import TlsFiles

FILES = {file.path: file for file in read_files()}
OURS = [file for file in FILES.values() if not file.path.startswith("vendor/")]


@pytest.fixture
async def local(tmp_path):
    central = Served(tmp_path)
    api = HttpApi(central.fleet, "127.0.0.1:0", TlsFiles(), Access(("operator",)))
    await api.start()
    yield api
    await api.stop()
    await central.close()


def ask(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def get(api, path, **headers):
    return await asyncio.to_thread(ask, api.port, path, **headers)


async def test_every_file_is_served_with_its_type_and_the_policy(local):
    for path in ["", *(f"page/{name}" for name in FILES)]:
        status, headers, content = await get(local, f"/{path}")
        file = FILES[path.removeprefix("page/") or "index.html"]
        assert (status, content, headers["content-type"]) == (200, file.content, file.media_type)
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-cache"
        status, headers, content = await get(local, f"/{path}", **{"Accept-Encoding": "gzip"})
        assert headers["content-encoding"] == "gzip" and gzip.decompress(content) == file.content
        status, headers, content = await get(local, f"/{path}", **{"If-None-Match": f'"other", {file.etag}'})
        assert (status, content, headers["etag"]) == (304, b"", file.etag)


async def test_only_the_pages_own_files_are_served(local):
    for path in ("/page/", "/page/nothing.js", "/page/../files.py", "/page/%2e%2e/files.py", "/page/views"):
        status, _, _ = await get(local, path)
        assert status == 404, path
    status, _, _ = await asyncio.to_thread(ask, local.port, "/", Host="elsewhere.example")
    assert status == 400, "another name that leads here"


async def test_an_answer_that_is_known_is_not_sent_again(local):
    status, headers, content = await get(local, "/v1/hosts")
    assert status == 200 and content and headers["cache-control"] == "private, no-cache"
    status, again, content = await get(local, "/v1/hosts", **{"If-None-Match": headers["etag"]})
    assert (status, again["etag"], content) == (304, headers["etag"], b"")
    status, _, content = await get(local, "/openapi.json", **{"Accept-Encoding": "gzip"})
    assert status == 200 and gzip.decompress(content).startswith(b'{"openapi"')


def test_the_policy_lets_in_nothing_foreign_or_inline():
    assert POLICY.split("; ")[0] == "default-src 'none'"
    assert not re.search(r"unsafe|\*|https?:|blob:", POLICY)
    assert {"base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'"} <= set(POLICY.split("; "))


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.path)
def test_a_file_names_only_files_that_are_there_and_nothing_elsewhere(file):
    text = file.content.decode()
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    here = PurePosixPath(file.path).parent
    for name in re.findall(r"(?:from|import\()\s*\"(\.[^\"]+)\"", text):
        parts: list[str] = []
        for part in (here / name).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert "/".join(parts) in FILES, f"{file.path}: {name}"
    for name in re.findall(r"\"page/([^\"]+)\"", text):
        assert name in FILES, f"{file.path}: {name}"


def test_the_page_has_nothing_inline_and_makes_no_markup_of_text():
    index = FILES["index.html"].content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=", index)
    assert re.findall(r"<script(?![^>]*\ssrc=)", index) == []
    for file in OURS:
        if file.path.endswith(".js"):
            text = file.content.decode()
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_the_vendored_charts_have_their_licence():
    assert b"v1.6.32" in FILES["vendor/uPlot.iife.min.js"].content[:200]
    assert b"MIT License" in FILES["vendor/uPlot.LICENSE"].content
