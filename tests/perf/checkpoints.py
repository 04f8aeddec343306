"""A checkpoint of any size, laid out as Spark lays out a query that keeps its state in RocksDB."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from pathlib import Path

QUERY_ID = "0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa"
LAST_BATCH = 9
_CHUNK_BYTES = 512  # Hadoop's


def write_checkpoint(
    root: Path,
    *,
    operators: int = 4,
    partitions: int = 5,
    tables: int = 50,
    table_bytes: int,
    sparse: bool = False,
) -> None:
    """Write a checkpoint whose last batch is committed, with Hadoop's checksum beside each file.

    Args:
        root: its folder.
        operators: how many stateful operators there are.
        partitions: of each.
        tables: the files of sorted keys that the snapshot of each partition names.
        table_bytes: the size of one of them.
        sparse: let them have a size and no bytes, and no checksums.
    """
    _put(root / "metadata", json.dumps({"id": QUERY_ID}).encode())
    conf = {"spark.sql.shuffle.partitions": str(partitions)}
    entry = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
    for batch in (LAST_BATCH - 1, LAST_BATCH):
        _put(root / f"offsets/{batch}", f'v1\n{entry}\n{{"logOffset":0}}'.encode())
        _put(root / f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    _put(root / "sources/0/0", b"v1\n")
    table = b"" if sparse else os.urandom(table_bytes)
    checksum = b"" if sparse else _checksum(table)
    for operator in range(operators):
        state = root / f"state/{operator}"
        _put(state / "_metadata/metadata", _metadata(operator, partitions))
        _put(state / "0/_metadata/schema", b"schema")
        for partition in range(partitions):
            folder = state / str(partition)
            names = [f"{n:06d}-{operator}-{partition}.sst" for n in range(tables)]
            for name in names:
                path = folder / "SSTs" / name
                if sparse:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
                    os.truncate(path, table_bytes)
                else:
                    _put(path, table, checksum)
            _put(folder / f"{LAST_BATCH - 1}.zip", _snapshot(names, table_bytes))
            for version in (LAST_BATCH, LAST_BATCH + 1):
                _put(folder / f"{version}.changelog", os.urandom(20_000))


def count_files(root: Path) -> tuple[int, int]:
    """Return how many files there are, and their bytes."""
    sizes = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def _put(path: Path, data: bytes, checksum: bytes | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").write_bytes(checksum or _checksum(data))


def _checksum(data: bytes) -> bytes:
    chunks = range(0, len(data), _CHUNK_BYTES)
    sums = [zlib.crc32(data[start : start + _CHUNK_BYTES]).to_bytes(4, "big") for start in chunks]
    return b"crc\0" + _CHUNK_BYTES.to_bytes(4, "big") + b"".join(sums)


def _metadata(operator: int, partitions: int) -> bytes:
    info = {"operatorId": operator, "operatorName": "stateStoreSave"}
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}
    return f"v1\n{json.dumps({'operatorInfo': info, 'stateStoreInfo': [store]})}".encode()


def _snapshot(names: list[str], table_bytes: int) -> bytes:
    files = [
        {"localFileName": name, "dfsSstFileName": name, "sizeBytes": table_bytes} for name in names
    ]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        document = {"sstFiles": files, "logFiles": [], "numKeys": len(names)}
        archive.writestr("metadata", f"v1\n{json.dumps(document)}")
        archive.writestr("MANIFEST-000001", os.urandom(20_000))
    return made.getvalue()
