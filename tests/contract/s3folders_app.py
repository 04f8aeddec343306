"""S3 as moto imitates it, whose folders stay when they are empty, as SeaweedFS' do."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def App() -> Any:  # noqa: N802 - made as the other stores' are
    """Return the server."""
    from moto.s3.models import S3Backend
    from moto.server import DomainDispatcherApplication, create_backend_app

    folders: defaultdict[str, set[str]] = defaultdict(set)
    put, list_, delete = S3Backend.put_object, S3Backend.list_objects, S3Backend.delete_object

    def put_object(self, bucket_name, key_name, *args, **options):
        parts = key_name.split("/")[:-1]
        folders[bucket_name].update("/".join(parts[: n + 1]) + "/" for n in range(len(parts)))
        return put(self, bucket_name, key_name, *args, **options)

    def list_objects(self, bucket, prefix, delimiter, **options):
        keys, found, *more = list_(self, bucket, prefix, delimiter, **options)
        begin = prefix or ""
        under = {f for f in folders[bucket.name] if f.startswith(begin) and f != begin}
        stay = {f"{begin}{f[len(begin) :].split('/')[0]}/" for f in under if delimiter}
        return (keys, sorted({*found, *stay}), *more)

    def delete_object(self, bucket_name, key_name, *args, **options):
        names = {*self.get_bucket(bucket_name).keys, *folders[bucket_name]} - {key_name}
        if not any(name.startswith(key_name) for name in names):
            folders[bucket_name].discard(key_name)
        return delete(self, bucket_name, key_name, *args, **options)

    for patched in (put_object, list_objects, delete_object):
        setattr(S3Backend, patched.__name__, patched)
    app = DomainDispatcherApplication(create_backend_app)

    def named(environ, start_response):
        def start(status, headers, *more):
            return start_response(status, [*headers, ("Server", "SeaweedFS")], *more)

        return app(environ, start)

    return named
