"""Zip files with something in them that should not be there."""

import zipfile


def changed(path, target, change, compression=zipfile.ZIP_STORED):
    """A copy in which some members are others: bytes by the end of their names."""
    with (
        zipfile.ZipFile(path) as old,
        zipfile.ZipFile(target, "w", compression) as new,
    ):
        for info in old.infolist():
            data = old.read(info)
            for end, make in change.items():
                data = make(data) if info.filename.endswith(end) else data
            new.writestr(info.filename, data)
    return target
