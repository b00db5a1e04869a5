import errno
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from loopir import (
    ArtifactStore,
    BuildError,
    StoreError,
    StoreWarning,
    explain_miss,
    optional_files,
)
from loopir.cache.exclusive import exclusive
from loopir.cache.store import default_root


def test_store_keeps_what_it_is_given(tmp_path):
    store = ArtifactStore(tmp_path / "cache")
    key = store.key("a", b"b")
    assert (
        key != store.key("ab", "")
        and key != store.key("a", "b", "")
        and store.get(key, ".so") is None
    )
    path = store.put(key, ".so", b"payload")
    assert store.get(key, ".so") == path and path.read_bytes() == b"payload"
    assert (
        store.put(key, ".txt", lambda p: p.write_bytes(b"again") and None).read_bytes() == b"again"
    )
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
    assert (
        os.stat(store.root).st_mode & 0o777 == 0o700
        and os.stat(path.parent).st_mode & 0o777 == 0o700
    )


def test_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(StoreError, match="writable by others") as error:
        ArtifactStore(tmp_path / "shared").get("00", ".so")
    assert "STRATA_CACHE_DIR" in str(error.value) and str(tmp_path / "shared") in str(error.value)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o777, 0o775, 0o757, 0o720, 0o702])
def test_others_may_read_a_directory_but_not_write_to_it(tmp_path, mode):
    (tmp_path / "given").mkdir()
    (tmp_path / "given").chmod(mode)
    store = ArtifactStore(tmp_path / "given")
    if mode & 0o022:
        with pytest.raises(StoreError, match="writable by others"):
            store.get("00", ".so")
    else:
        assert store.put(store.key("k"), ".so", b"x").read_bytes() == b"x"


def test_default_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache"
    monkeypatch.delenv("STRATA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache" / "torchstrata"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "torchstrata"


def test_temporary_directory_for_one_that_is_unusable(tmp_path):
    (tmp_path / "file").write_text("")
    store = ArtifactStore(tmp_path / "file", or_temporary=True)
    key = store.key("k")
    assert store.get(key, ".so") is None
    with pytest.warns(StoreWarning, match="this process only"):
        path = store.put(key, ".so", b"x")
    assert path.read_bytes() == b"x" and store.get(key, ".so") == path
    assert ArtifactStore(tmp_path / "file", or_temporary=True).get(key, ".so") == path


@pytest.fixture
def store(tmp_path):
    """A store that may use a temporary directory."""
    return ArtifactStore(tmp_path / "store", or_temporary=True)


def stored_with_one_warning(store):
    """Two artifacts stored while something fails; both are found again."""
    keys = [store.key(name, str(store.root)) for name in "kl"]
    with pytest.warns(StoreWarning, match="this process only") as caught:
        paths = [store.put(key, ".so", b"x") for key in keys]
    assert len(caught) == 1
    assert [store.get(key, ".so") for key in keys] == paths
    assert [path.read_bytes() for path in paths] == [b"x", b"x"]


def failing_in(directory, function, error, times=10**9):
    """A function of ``os`` or ``Path`` that fails for paths in a directory, ``times`` times."""
    left = [times]

    def run(*args, **kwargs):
        inside = any(str(directory) in str(arg) for arg in (*args, *kwargs.values()))
        if inside and left[0]:
            left[0] -= 1
            raise OSError(error, os.strerror(error))
        return function(*args, **kwargs)

    return run


def test_one_failed_rename_is_one_warning(store, tmp_path, monkeypatch):
    fails = failing_in(tmp_path, os.replace, errno.EACCES, times=1)
    monkeypatch.setattr(os, "replace", fails)
    stored_with_one_warning(store)
    assert not [path for path in tmp_path.rglob(".*")]


def test_full_disk_is_one_warning(store, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", failing_in(tmp_path, Path.write_bytes, errno.ENOSPC))
    stored_with_one_warning(store)


def test_directory_that_became_read_only_is_one_warning(store, tmp_path, monkeypatch):
    store.put(store.key("before"), ".so", b"y")
    monkeypatch.setattr(tempfile, "mkstemp", failing_in(tmp_path, tempfile.mkstemp, errno.EROFS))
    monkeypatch.setattr(os, "utime", failing_in(tmp_path, os.utime, errno.EROFS))
    stored_with_one_warning(store)
    assert store.get(store.key("before"), ".so").read_bytes() == b"y"


def test_compiler_on_a_full_disk_runs_again_elsewhere(store, tmp_path):
    def make(target):
        if tmp_path in target.parents:
            raise BuildError("ld failed", output="ld: final link: No space left on device")
        target.write_bytes(b"x")

    with pytest.warns(StoreWarning, match="No space left"):
        assert store.load(store.key("full disk"), ".so", make, Path.read_bytes) == b"x"


def test_bytes_are_dropped_where_nothing_can_be_written(store, monkeypatch):
    everywhere = failing_in("/", tempfile.mkstemp, errno.ENOSPC)
    monkeypatch.setattr(tempfile, "mkstemp", everywhere)
    with pytest.warns(StoreWarning):
        store.put(store.key("dropped"), ".so", b"x")
    assert store.get(store.key("dropped"), ".so") is None


def test_user_without_a_home_directory(monkeypatch, tmp_path):
    def unknown(*_):
        raise KeyError("no such user")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "STRATA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="no home directory"):
        ArtifactStore().put("00ff", ".so", b"")
    stored_with_one_warning(ArtifactStore(or_temporary=True))
    assert not list(tmp_path.iterdir())


def test_optional_files_warn_once(tmp_path):
    def write():
        with optional_files("the diary"):
            tmp_path.write_text("")

    with pytest.warns(StoreWarning, match="the diary can't be written"):
        write()
    write()


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


def make_slowly(root, log):
    store = ArtifactStore(root)

    def make(path):
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.3)
        path.write_bytes(b"slow")

    assert store.load(store.key("slow"), ".so", make, Path.read_bytes) == b"slow"


def test_processes_that_start_together_make_an_artifact_once(tmp_path):
    context = multiprocessing.get_context("fork")
    arguments = tmp_path / "store", tmp_path / "log"
    processes = [context.Process(target=make_slowly, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "made\n"


def test_waiting_has_a_deadline(tmp_path):
    context = multiprocessing.get_context("fork")
    path, holds = tmp_path / "lock", context.Event()

    def hold():
        with exclusive(path):
            holds.set()
            time.sleep(60)

    process = context.Process(target=hold)
    process.start()
    assert holds.wait(30)
    with exclusive(path, seconds=0.1) as has_waited:
        assert has_waited
    process.kill()  # a process that dies lets go
    process.join()
    with exclusive(path, seconds=30) as has_waited, exclusive(path) as again:
        assert not has_waited and not again  # a thread may hold it twice
    with exclusive(tmp_path / "nowhere" / "lock") as has_waited:
        assert not has_waited


def test_foreign_files_and_links_are_misses(tmp_path, monkeypatch):
    store = ArtifactStore(tmp_path / "store")
    key = store.key("k")
    path = store.put(key, ".so", b"payload")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"payload")
    path.unlink()
    path.symlink_to(elsewhere)
    assert store.get(key, ".so") is None
    path = store.put(key, ".so", b"payload")
    assert store.get(key, ".so") == path and not path.is_symlink(), "rebuilt over the link"
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert store.get(key, ".so") is None, "somebody else's file"
    with pytest.raises(StoreError, match="belongs to user"):
        ArtifactStore(store.root).get(key, ".so")


def test_tampered_manifest_is_a_miss(tmp_path):
    store = ArtifactStore(tmp_path)
    key = store.key("k")
    path = store.put(key, ".so", b"payload")
    manifest = path.with_name(path.name + ".manifest")
    for text in (
        b"",
        b"format: 3\n",
        b"\xff\xfe",
        manifest.read_bytes().replace(b"size: 7", b"size: 8"),
    ):
        manifest.write_bytes(text)
        assert store.get(key, ".so") is None


def test_artifact_under_another_key_is_a_miss(tmp_path):
    store = ArtifactStore(tmp_path)
    a, b = store.key("a"), store.key("b")
    first, second = store.put(a, ".so", b"first"), store.put(b, ".so", b"second")
    for path, other in ((first, second), (store_manifest(first), store_manifest(second))):
        path.write_bytes(other.read_bytes())
    assert store.get(a, ".so") is None and store.get(b, ".so") == second


def store_manifest(path):
    return path.with_name(path.name + ".manifest")


def test_directories_in_the_place_of_files_are_replaced(tmp_path):
    store = ArtifactStore(tmp_path)
    key = store.key("k")
    path = store.put(key, ".so", b"payload")
    for place in (path, store_manifest(path)):
        place.unlink()
        (place / "inside").mkdir(parents=True)
    assert store.get(key, ".so") is None
    assert store.put(key, ".so", b"payload") == store.get(key, ".so")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_store_says_what_to_try(tmp_path):
    (tmp_path / "fixed").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="STRATA_CACHE_DIR"):
        ArtifactStore(tmp_path / "fixed").put("00ff", ".so", b"")


def test_store_stays_below_its_limit(tmp_path):
    store = ArtifactStore(tmp_path, limit=5000)
    keys = [store.key(str(i)) for i in range(8)]
    for age, key in enumerate(keys):
        path = store.put(key, ".so", b"x" * 1000)
        os.utime(path, (1000 + age, 1000 + age))
    left = path.with_name(".left-over.so")
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    assert store.get(keys[0], ".so") is not None, "used again"
    assert store.evict() == 4 and not left.exists()
    assert [store.get(key, ".so") is not None for key in keys] == [True, *[False] * 4, *[True] * 3]


def test_a_miss_is_explained(tmp_path):
    store = ArtifactStore(tmp_path)
    text = "x" * 500
    a, b, c = (
        store.key("cpp", text, "-O2"),
        store.key("cpp", text, "-O3"),
        store.key("cpp", text + "y", "-O2", "avx2"),
    )
    store.put(a, ".so", b"payload")
    assert ArtifactStore(tmp_path).explain_miss(a, b).startswith(f"nothing is known of {b}")
    assert store.explain_miss(a, b) == "part 2: '-O2' became '-O3'"
    assert store.explain_miss(a, a) == "the keys are the same"
    other = ArtifactStore(tmp_path)
    other.key("cpp", text + "y", "-O2", "avx2")
    changed = other.explain_miss(a, c)
    assert re.search(r"part 1: \w{8} of 500 bytes became \w{8} of 501\n", changed)
    assert changed.endswith("3 parts became 4")


def test_the_nearest_key_is_read_once(tmp_path, monkeypatch):
    store = ArtifactStore(tmp_path)
    near, far = store.key("a", "b", "c"), store.key("x", "y", "z")
    for key in (near, far):
        store.put(key, ".graph", b"payload")
    store.put(store.key("a", "b", "d"), ".so", b"payload")
    other = ArtifactStore(tmp_path)
    missing = other.key("a", "b", "d")
    assert other.keys(".graph") == sorted([near, far])
    expected = f"{missing} missed; nearest is {near}:\n'c' became 'd'"
    assert explain_miss(other, missing, ".graph") == expected
    read = []
    monkeypatch.setattr(ArtifactStore, "_recorded", lambda self, key: read.append(key))
    assert explain_miss(other, missing, ".graph") == expected
    assert not read
