"""The folder of a lake: whether one may be made here, and what is wrong where none is found."""

from siltstone.config import CONFIG_FILE
from siltstone.delta.layout import LOG, SYSTEM, Layout
from siltstone.errors import InvalidRequest, NotFound, SiltstoneError, Unavailable


def no_lake(layout: Layout) -> NotFound:
    """Return what to say where there is no registry: there was no lake, or its registry was lost."""
    if (layout.root / SYSTEM).is_dir():
        return NotFound(
            f"Lake {layout.root} has no registry. If it had datasets, restore {layout.registry} from a backup, or register what "
            "is on disk with silt doctor --repair; silt create begins a new lake."
        )
    return NotFound(f"There is no lake at {layout.root} yet; silt create makes it.")


def unwritable(layout: Layout, error: OSError) -> SiltstoneError:
    """Return what to say where a folder or table of a lake cannot be made."""
    if isinstance(error, NotADirectoryError | FileExistsError):
        return InvalidRequest(
            f"Lake {layout.root}: a file is in the way where a folder must be ({error}). Move it away, or choose another name."
        )
    return Unavailable(f"Lake {layout.root} cannot be written ({error}). Check its permissions.")


def refuse_foreign_folder(layout: Layout) -> None:
    """A lake is never laid over a folder that holds something else."""
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
    if others and not layout.is_lake():  # asked again: another process may have made the lake since
        raise InvalidRequest(f"{root} is not a lake and not empty (it holds {others[0]!r}). Choose an empty folder.")
