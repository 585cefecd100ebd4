"""Downloads from a hub on this machine: what is fetched, resumed, and refused when it changed."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import bad_files as files
import numpy as np
import pytest
import torch

import bridges
from bridges.hub import resolve
from dew.errors import InputRefused

COMMIT = "c" * 40
NAME = "owner/name"


def listing(name, content):
    """What the hub's tree says of a file kept by Git LFS."""
    digest, size = hashlib.sha256(content).hexdigest(), len(content)
    large = {"oid": digest, "size": size, "pointerSize": 100}
    return {"type": "file", "path": name, "oid": "0" * 40, "size": size, "lfs": large}


class Hub(BaseHTTPRequestHandler):
    """The few answers of the hub that a download asks for."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def log_message(self, *arguments):
        pass

    def answer(self, *, body):
        state = self.server.state
        state["asked"].append((self.command, self.path, self.headers.get("Range")))
        if self.path.startswith("/api/"):
            tree = [listing(name, content) for name, content in state["files"].items()]
            found = tree if "/tree/" in self.path else {"id": NAME, "sha": COMMIT}
            self.send(200, json.dumps(found).encode(), body, {})
            return
        content = state["files"].get(self.path.rpartition("/")[2])
        if content is None:
            self.send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
            return
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        sent = state["sent"].get(self.path.rpartition("/")[2], content)
        begin = self.headers.get("Range")
        if body and begin and state["ranges"]:
            first = int(begin.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(sent) - 1}/{len(sent)}"
            self.send(206, sent[first:], body, headers)
        else:
            self.send(200, sent, body, headers)

    def send(self, status, content, body, headers):
        cut = self.server.state["cut"].pop(self.path.rpartition("/")[2], None) if body else None
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with one repository; its state says what it holds, sends and cuts off."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"files": {}, "sent": {}, "cut": {}, "ranges": True, "asked": []}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    address = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "dew"))
    yield server.state
    server.shutdown()
    thread.join()
    server.server_close()


def healthy():
    """The files of a GPT-2."""
    return {
        "config.json": json.dumps(files.gpt2_config()).encode(),
        "model.safetensors": files.packed(files.gpt2_tensors()),
    }


def pickled():
    """The same weights as torch.save writes them."""
    out = io.BytesIO()
    torch.save({n: torch.from_numpy(a) for n, a in files.gpt2_tensors().items()}, out)
    return out.getvalue()


def requests(state, command):
    return [path.rpartition("/")[2] for asked, path, _ in state["asked"] if asked == command]


def test_a_repository_loads_and_its_files_are_hashed_once(hub, tmp_path, monkeypatch):
    hub["files"] = healthy()
    bundle = bridges.load(NAME)
    assert np.isfinite(np.asarray(bundle(input_ids=np.arange(4)[None])["logits"])).all()
    opened = []
    monkeypatch.setattr("bridges.hub._blob_problem", lambda blob: opened.append(blob))
    resolve(NAME)
    assert opened == []


def test_pickled_weights_are_fetched_only_where_there_are_no_others(hub):
    hub["files"] = healthy() | {"pytorch_model.bin": pickled(), "training_args.bin": b"x"}
    resolve(NAME)
    assert sorted(set(requests(hub, "HEAD"))) == ["config.json", "model.safetensors"]


def test_a_repository_of_pickled_weights_alone_loads(hub):
    hub["files"] = healthy() | {"pytorch_model.bin": pickled(), "training_args.bin": b"x"}
    hub["files"].pop("model.safetensors")
    folder = resolve(NAME)
    assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "pytorch_model.bin"]
    bridges.load(folder)


def test_bytes_changed_on_the_way_are_refused_and_set_aside(hub, tmp_path):
    # BAD-INPUTS BP098: the same size, one byte flipped.
    hub["files"] = healthy()
    wrong = bytearray(hub["files"]["model.safetensors"])
    wrong[-9] ^= 255
    hub["sent"]["model.safetensors"] = bytes(wrong)
    with pytest.raises(InputRefused, match=r"model\.safetensors: its sha256 is .*set aside as"):
        resolve(NAME)
    asides = list((tmp_path / "hub").rglob("*.damaged"))
    assert [path.read_bytes() for path in asides] == [bytes(wrong)]
    hub["sent"].clear()
    folder = resolve(NAME)
    assert (folder / "model.safetensors").read_bytes() == hub["files"]["model.safetensors"]


def test_bytes_changed_in_the_cache_are_refused(hub):
    hub["files"] = healthy()
    blob = (resolve(NAME) / "model.safetensors").resolve()
    wrong = bytearray(blob.read_bytes())
    wrong[-9] ^= 255
    blob.write_bytes(bytes(wrong))
    with pytest.raises(InputRefused, match="sha256"):
        resolve(NAME)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_was_cut_goes_on_or_starts_anew(ranges, hub):
    # BAD-INPUTS BP099: a server that answers 200 to a Range sends the whole file again.
    hub["files"], hub["ranges"] = healthy(), ranges
    hub["cut"]["model.safetensors"] = 1000
    folder = resolve(NAME)
    assert (folder / "model.safetensors").read_bytes() == hub["files"]["model.safetensors"]
    begins = [begin for _, path, begin in hub["asked"] if begin and path.endswith("safetensors")]
    assert begins == ["bytes=1000-"]


def test_a_file_that_stays_too_short_is_refused(hub):
    hub["files"] = healthy()
    hub["sent"]["model.safetensors"] = hub["files"]["model.safetensors"][:-100]
    with pytest.raises(InputRefused, match=r"sha256|download failed"):
        resolve(NAME)


def test_git_files_are_held_to_their_object_id(hub, tmp_path):
    # The name is what `git hash-object` of git 2.39 gives for the content.
    from bridges.hub import check_snapshot

    snapshot, blobs = tmp_path / "r/snapshots/1", tmp_path / "r/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    name = "0967ef424bce6791893e9a57bb952f80fd536e93"
    (blobs / name).write_bytes(b"{}\n")
    (snapshot / "config.json").symlink_to(f"../../blobs/{name}")
    check_snapshot(snapshot)
    (blobs / name).write_bytes(b"{ }\n")
    with pytest.raises(InputRefused, match=r"config\.json: its git object id is"):
        check_snapshot(snapshot)
