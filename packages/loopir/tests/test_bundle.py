"""Bundles: a store in one file, complete or not at all."""

import errno
import zipfile

import pytest
from loopir import ArtifactStore, StoreError, export_bundle, import_bundle


@pytest.fixture
def filled(tmp_path):
    store = ArtifactStore(tmp_path / "first")
    for number in range(3):
        key = store.key("kernel", f"text {number}", "x" * 500)
        suffix = ".cpython-312-x86_64-linux-gnu.so" if number == 1 else ".so"
        store.put(key, suffix, bytes([number]) * 1000)
    store.put(key, ".program", b"the same key")
    return store


def contents(store):
    return {(a.key, a.suffix): a.path.read_bytes() for a in store.artifacts()}


def test_a_bundle_fills_another_store(filled, tmp_path):
    bundle, other = tmp_path / "cache.zip", ArtifactStore(tmp_path / "second")
    assert export_bundle(filled, bundle) == 4
    assert import_bundle(other, bundle) == 4
    assert contents(other) == contents(filled)
    assert all(other.get(key, suffix) is not None for key, suffix in contents(filled))
    first, second, _ = dict.fromkeys(key for key, _ in contents(filled))
    assert ArtifactStore(other.root).explain_miss(first, second) == (
        ArtifactStore(filled.root).explain_miss(first, second)
    )


def test_what_is_changed_or_left_over_stays_behind(filled, tmp_path):
    changed, *_ = filled.artifacts()
    changed.path.write_bytes(b"changed")
    (changed.path.parent / ".leftover.so").write_bytes(b"")
    assert export_bundle(filled, tmp_path / "cache.zip") == 3


@pytest.mark.parametrize("damage", ["name", "data", "manifest", "path", "no zip", "torn"])
def test_a_damaged_bundle_stores_nothing(filled, tmp_path, damage):
    bundle, other = tmp_path / "cache.zip", ArtifactStore(tmp_path / "second")
    export_bundle(filled, bundle)
    with zipfile.ZipFile(bundle) as read:
        members = {name: read.read(name) for name in read.namelist()}
    last = [name for name in members if not name.endswith(".manifest")][-1]
    if damage == "data":
        members[last] += b"!"
    elif damage == "manifest":
        del members[f"{last}.manifest"]
    elif damage == "name":
        members["readme.txt"] = members["readme.txt.manifest"] = b""
    elif damage == "path":
        name = f"../{last}"
        members[name], members[f"{name}.manifest"] = members[last], members[f"{last}.manifest"]
    with zipfile.ZipFile(bundle, "w") as written:
        for name, data in members.items():
            written.writestr(name, data)
    if damage == "no zip":
        bundle.write_bytes(b"something else")
    elif damage == "torn":
        bundle.write_bytes(bundle.read_bytes()[:-30])
    with pytest.raises(StoreError, match=r"can't read the bundle .*cache\.zip: "):
        import_bundle(other, bundle)
    assert contents(other) == {} and not (tmp_path / last).exists()


def test_a_full_disk_leaves_the_old_bundle(filled, tmp_path, monkeypatch):
    bundle = tmp_path / "cache.zip"
    bundle.write_bytes(b"old")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "write", full)
    with pytest.raises(StoreError, match="can't write the bundle .*No space left"):
        export_bundle(filled, bundle)
    assert bundle.read_bytes() == b"old" and list(tmp_path.iterdir()) == [
        path for path in tmp_path.iterdir() if not path.name.startswith(".cache")
    ]


def test_a_bundle_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        import_bundle(ArtifactStore(tmp_path), tmp_path / "none.zip")
