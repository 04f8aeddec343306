"""The ``files`` sink in an object store: the order of its steps, and their retries."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.bucket_files.rows import RowFormat
from airflow_provider.extensions.bucket_files.upload import Uploaded, UploadTask, run_upload
from airflow_provider.runtime.api.errors import ConfigError, SinkError
from airflow_provider.runtime.api.kit.columns import check_columns, refusing_folder_values
from airflow_provider.runtime.api.kit.data_files import (
    final_name,
    is_final_name,
    is_name_of,
    last_marked,
    marked,
    put_mark,
)
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.lineage import folder_dataset
from airflow_provider.runtime.api.kit.locations import open_objects
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.kit.parallel import for_each
from airflow_provider.runtime.api.kit.refusals import refusal_of
from airflow_provider.runtime.api.kit.spark import arrow_schema
from airflow_provider.runtime.api.kit.staging import (
    check_append_only,
    folder_name,
    is_inside,
    own_errors,
    staged_epochs,
)
from airflow_provider.runtime.api.sink_errors import reading, tampered_record_error
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    FileLayout,
    IsGarbage,
    Staged,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.kit.object_stores import ObjectStorage
    from airflow_provider.runtime.api.storages import GoOn

_AT_ONCE: Final = 32  # requests; more only earns "slow down" from the store
_MOST_FILES: Final = 100_000
"""Of an epoch: all are named in its record, which is read at once."""

_Move = tuple[str, str, int]  # the staged file's path, the published one's, and its bytes


class BucketFilesSink:
    """Files in an object store; :func:`~airflow_provider.runtime.files` makes one."""

    api_version = 1

    def __init__(
        self, url: str, file_format: str, partition_by: tuple[str, ...], options: Mapping[str, str]
    ) -> None:
        self._url = url.rstrip("/")
        self._rows = RowFormat(file_format, partition_by, dict(options))
        self._published: set[str] = set()  # ids of queries of which there is a file

    @property
    def name(self) -> str:
        return f"files:{self._url}"

    @property
    def location(self) -> str:
        return self._url

    @property
    def holds_files(self) -> bool:
        return True

    @property
    def layout(self) -> FileLayout:
        return FileLayout(self.rows.format, self.rows.partition_by, dict(self.rows.options))

    def datasets(self) -> tuple[Dataset, ...]:
        return (folder_dataset(self._url),)

    @property
    def rows(self) -> RowFormat:
        return self._rows

    # --- before anything is written ---------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what cannot be written, and a bucket that is not there or not to be written to."""
        self.check_shape(df, output_mode)
        _check_pyarrow(self.name)
        try:
            self._check_rights()
        except OSError as error:
            raise refusal_of(error, f"{self.name}: {error}") from error

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        check_append_only(self.name, output_mode)
        missing = [column for column in self._rows.partition_by if column not in df.columns]
        if missing:
            raise ConfigError(f"{self.name}: there is no column {missing[0]!r} to partition by")
        try:
            self._rows.check(df.schema)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        check_columns(self.name, df, self._rows.format, self._rows.partition_by, by_name=True)

    def _check_rights(self) -> None:
        """Check the permissions to list and write, and the condition of a copy, by a trial copy."""
        parent, folder = self._locations()
        absent = uuid.uuid4().hex
        parent.size_of(f"{folder}/{absent}")
        parent.at(folder).end_copies(lambda _: False)
        with contextlib.suppress(FileNotFoundError):
            parent.copy_if_absent(
                f"{_staged_path(folder)}/{absent}", f"{folder}/{absent}", go_on=lambda: None
            )
        parent.prove_copies(_staged_path(folder))

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Let Spark's tasks write the rows to files, and upload them to the staging folder.

        Crash safety: a crash leaves staged files, which :meth:`recover` removes.
        """
        with own_errors(self.name):
            staging = self._folder_of(epoch)
            staging.delete("")
            own = uuid.uuid4().hex[:8]
            task = UploadTask(
                f"{staging.url}/{own}",
                self._rows.file_format(df),
                self._rows.partition_by,
                self._rows.most_rows,
            )
        with refusing_folder_values():
            uploaded = run_upload(self._rows.rows(df), task)
        with own_errors(self.name):
            if not uploaded and self._needs_schema(epoch.query_id):
                uploaded = [_upload_schema(df, task)]
        return self._staged(own, uploaded, epoch)

    def _staged(self, own: str, uploaded: Sequence[Uploaded], epoch: EpochId) -> Staged:
        if len(uploaded) > _MOST_FILES:
            raise SinkError(
                f"{self.name}: epoch {epoch.epoch} has {len(uploaded)} files, more than "
                f"{_MOST_FILES}; let the rows of a value of partition_by be in one partition "
                "(repartition), or read less in a batch"
            )
        moves = [
            [f"{own}/{file.path}", final_name(f"{own}/{file.path}", i, epoch), file.size_bytes]
            for i, file in enumerate(uploaded)
        ]
        return Staged({"files": moves}, sum(file.rows for file in uploaded))

    # --- publishing -------------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Let the store copy the staged files to their final names, several in parallel."""
        moves = self._moves(committable)
        parent, folder = self._locations()
        home = (
            f"{_staged_path(folder)}/{committable.epoch.query_id}/{folder_name(committable.epoch)}"
        )

        def publish(move: _Move, _: GoOn) -> None:
            self._publish(parent, f"{home}/{move[0]}", f"{folder}/{move[1]}", move[2], fence)

        with own_errors(self.name):
            if moves:
                put_mark(self._marks, committable)
            for_each(moves, publish, at_once=_AT_ONCE)
            if moves:
                self._published.add(committable.epoch.query_id)
            parent.delete(home)

    def _publish(
        self, parent: ObjectStorage, staged: str, target: str, size_bytes: int, fence: Fence
    ) -> None:
        def about_to_appear() -> None:
            fence.check()
            failpoints.hit("bucket.publishing_one")

        try:
            is_new = parent.copy_if_absent(staged, target, go_on=about_to_appear)
        except FileNotFoundError:
            is_new = False
        found = size_bytes if is_new else parent.size_of(target)
        if found is None:
            raise SinkError(
                f"{parent.url}/{target}: neither published nor staged ({staged} is gone); the "
                f"staged file was removed by hand: restore it, or {FROM_SCRATCH}"
            )
        if found != size_bytes:
            raise SinkError(
                f"{parent.url}/{target}: there is a file of {found} bytes, not the epoch's of "
                f"{size_bytes}; another program has put it there: move it away"
            )
        failpoints.hit("bucket.published_one")

    def _moves(self, committable: Committable) -> list[_Move]:
        moves = []
        with reading(self.name, committable):
            found = [(str(s), str(f), int(size)) for s, f, size in committable.data["files"]]
        for staged, final, size_bytes in found:
            is_ours = is_inside(staged) and is_inside(final)
            if not (is_ours and is_final_name(final, committable.epoch)):
                raise tampered_record_error(self.name, committable.epoch, final)
            moves.append((staged, final, size_bytes))
        return moves

    def writers(self, job_dir: str) -> set[str]:
        with own_errors(self.name):
            found = marked(self._marks, job_dir)
            return found if found and self._output.list("") else set()

    def last_epoch(self, query_id: str) -> int:
        with own_errors(self.name):
            return last_marked(self._marks, query_id)

    # --- what is not published --------------------------------------------------------------------

    def abort(self, committable: Committable) -> None:
        with own_errors(self.name):
            self._folder_of(committable.epoch).delete("")

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Remove the query's staged files that are garbage, and copies that were not completed."""
        with own_errors(self.name):
            for epoch in staged_epochs(self._staging(query_id).url, query_id):
                if is_garbage(epoch.epoch, epoch.token):
                    self._folder_of(epoch).delete("")
            fence.check()
            self._output.end_copies(lambda path: is_name_of(path, query_id))

    # --- reverting --------------------------------------------------------------------------------

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Accept what the sink has published: a file's name says which epoch it is of."""
        for committable in committables:
            self._moves(committable)
        with own_errors(self.name):
            self._output.end_copies(lambda _: False)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Remove the staged files, then the published ones; in this order none comes back."""
        targets = [[final for _, final, _ in self._moves(c)] for c in committables]

        def withdraw(final: str, _: GoOn) -> None:
            fence.check()
            self._output.withdraw(final)
            failpoints.hit("bucket.reverted_one")

        with own_errors(self.name):
            for committable, published in zip(committables, targets, strict=True):
                self._folder_of(committable.epoch).delete("")
                for_each(published, withdraw, at_once=_AT_ONCE)

    # --- locations
    # -----------------------------------------------------------------------------------

    def _locations(self) -> tuple[ObjectStorage, str]:
        scheme, _, rest = self._url.partition("://")
        authority, _, path = rest.partition("/")
        above, _, folder = path.strip("/").rpartition("/")
        bucket = open_objects(f"{scheme}://{authority}")
        if bucket is None or not folder:
            raise ConfigError(
                f"{self.name}: names no folder; staged files lie beside it, so write "
                f"{scheme}://{authority}/folder"
            )
        return (bucket.at(above) if above else bucket), folder

    @property
    def _output(self) -> ObjectStorage:
        parent, folder = self._locations()
        return parent.at(folder)

    @property
    def _marks(self) -> ObjectStorage:
        parent, folder = self._locations()
        return parent.at(f".{folder}.writers")

    def _staging(self, query_id: str) -> ObjectStorage:
        parent, folder = self._locations()
        return parent.at(f"{_staged_path(folder)}/{query_id}")

    def _folder_of(self, epoch: EpochId) -> ObjectStorage:
        return self._staging(epoch.query_id).at(folder_name(epoch))

    def _needs_schema(self, query_id: str) -> bool:
        if self._rows.format != "parquet" or self._rows.partition_by:
            return False
        if query_id not in self._published:
            if not any(is_name_of(name, query_id) for name in self._output.list("")):
                return True
            self._published.add(query_id)
        return False


def _staged_path(folder: str) -> str:
    return f".{folder}.staging"


def _check_pyarrow(name: str) -> None:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            f"{name}: the driver and its executors need pyarrow to write to a bucket: "
            "pip install 'pyarrow>=18'"
        ) from error
    del pq


def _upload_schema(df: DataFrame, task: UploadTask) -> Uploaded:
    import pyarrow as pa

    storage: Any = open_objects(task.url)
    file = f"part-00000-{uuid.uuid4()}.c000{task.format.suffix}"
    schema = arrow_schema(df.schema)
    with tempfile.TemporaryDirectory(prefix="files-") as folder:
        path = Path(folder, file)
        written = task.format.create(str(path))
        written.write(pa.RecordBatch.from_pylist([], schema=schema))
        written.close()
        size_bytes = path.stat().st_size
        storage.send(file, str(path), size_bytes=size_bytes, go_on=lambda: None)
    return Uploaded(file, size_bytes, 0)
