import multiprocessing
import os

import pytest
from loopir import ArtifactStore, StoreError


def test_store_keeps_what_it_is_given(tmp_path):
    store = ArtifactStore(tmp_path / "cache")
    key = store.key("a", b"b")
    assert key != store.key("ab", "") and key != store.key("a", "b", "") and store.get(key, ".so") is None
    path = store.put(key, ".so", b"payload")
    assert store.get(key, ".so") == path and path.read_bytes() == b"payload"
    assert store.put(key, ".txt", lambda p: p.write_bytes(b"again") and None).read_bytes() == b"again"
    assert (store.hits, store.misses) == (1, 1)


def test_changed_or_torn_files_are_misses(tmp_path):
    store = ArtifactStore(tmp_path)
    key = store.key("k")
    path = store.put(key, ".so", b"payload")
    path.write_bytes(b"changed")
    assert store.get(key, ".so") is None
    path.unlink()
    assert store.get(key, ".so") is None
    store.put(key, ".so", b"payload")
    path.with_name(path.name + ".manifest").unlink()
    assert store.get(key, ".so") is None


def test_directories_are_private(tmp_path):
    store = ArtifactStore(tmp_path / "deep" / "cache")
    path = store.put(store.key("k"), ".so", b"x")
    assert os.stat(store.root).st_mode & 0o777 == 0o700 and os.stat(path.parent).st_mode & 0o777 == 0o700


def test_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(StoreError, match="writable by others") as error:
        ArtifactStore(tmp_path / "shared").get("00", ".so")
    assert "STRATA_CACHE_DIR" in str(error.value) and str(tmp_path / "shared") in str(error.value)


def test_unusable_directory_says_what_to_try(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="STRATA_CACHE_DIR"):
        ArtifactStore(tmp_path / "file").put("00ff", ".so", b"")


def test_failed_producer_leaves_nothing(tmp_path):
    store = ArtifactStore(tmp_path)

    def fail(path):
        path.write_bytes(b"half")
        raise RuntimeError("compiler died")

    with pytest.raises(RuntimeError, match="died"):
        store.put(store.key("k"), ".so", fail)
    assert store.get(store.key("k"), ".so") is None
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_default_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "chosen"))
    assert ArtifactStore().root == tmp_path / "chosen"


def write_often(root):
    store = ArtifactStore(root)
    for _ in range(100):
        store.put(store.key("k"), ".so", b"x" * 4096)


def test_processes_can_write_the_same_artifact(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_often, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    store = ArtifactStore(tmp_path)
    assert store.get(store.key("k"), ".so").read_bytes() == b"x" * 4096
