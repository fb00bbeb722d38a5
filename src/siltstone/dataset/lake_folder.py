"""The folder of a lake: whether a lake may be created here, and the error where no lake is found."""

from siltstone.config import CONFIG_FILE
from siltstone.delta.layout import LOG, SYSTEM, Layout
from siltstone.errors import InvalidRequest, NotFound, SiltstoneError, Unavailable


def no_lake(layout: Layout) -> NotFound:
    """Return the error for a missing registry: there was no lake, or its registry was lost."""
    if (layout.root / SYSTEM).is_dir():
        return NotFound(
            f"Lake {layout.root} has no registry. If it had datasets, restore {layout.registry} from a backup, or register what "
            "is on disk with silt doctor --repair; silt create begins a new lake."
        )
    return NotFound(f"There is no lake at {layout.root} yet. Check the path, or make one with silt create.")


def unwritable(layout: Layout, error: OSError) -> SiltstoneError:
    """Return the error for a folder or table of a lake that cannot be created."""
    if isinstance(error, NotADirectoryError | FileExistsError):
        return InvalidRequest(
            f"Lake {layout.root}: a file is in the way where a folder must be ({error}). Move it away, or choose another name."
        )
    return Unavailable(f"Lake {layout.root} cannot be written ({error}). Check its permissions.")


def refuse_foreign_folder(layout: Layout) -> None:
    """Reject a folder that holds something else: a lake is never created over it."""
    root = layout.root
    if not root.exists():
        return
    try:
        names = sorted(path.name for path in root.iterdir())
    except PermissionError as error:
        raise Unavailable(f"Lake {root} cannot be read ({error}). Check its permissions.") from error
    if LOG in names:
        raise InvalidRequest(f"{root} is a Delta table, not a lake. Choose an empty folder.")
    others = [name for name in names if name not in (SYSTEM, CONFIG_FILE)]
    if others and not layout.is_lake():  # checked again: another process may have created the lake since
        raise InvalidRequest(f"{root} is not a lake and not empty (it holds {others[0]!r}). Choose an empty folder.")
