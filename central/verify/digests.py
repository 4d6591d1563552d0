"""What `whitepanda lake verify` says of days' states."""

from collections.abc import Iterator

from central.build.state_cache import check_state, state_folders
from central.lake.errors import LakeError
from central.lake.segments import Lake


def state_problems(lake: Lake) -> Iterator[str]:
    """Yield a line per damaged state of a day. Where the lake is no folder, states are elsewhere and not looked at.

    Raises:
        OSError: the lake cannot be listed.

    """
    if not lake.is_folder:
        return
    for folder in state_folders(lake.root / "state"):
        try:
            check_state(folder)
        except LakeError as error:
            if folder.is_dir():  # else a builder has deleted it meanwhile
                yield str(error)
        except OSError as error:
            yield f"{folder.relative_to(lake.root)}: cannot be read: {error.strerror}"
