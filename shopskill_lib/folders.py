"""Where things are: the project and its run folders."""

from pathlib import Path

from shopskill_lib.errors import OutputError, ParameterError


def project() -> Path:
    """Return the project's root: the nearest folder above the working folder that holds `notebooks/`.

    Raises:
        ParameterError: there is none.
    """
    here = Path.cwd()
    for place in (here, *here.parents):
        if (place / "notebooks").is_dir() and (place / "shopskill_lib").is_dir():
            return place
    raise ParameterError(
        "there is no project around it",
        where=f"working folder {here}",
        allowed="a folder inside the project",
        todo="change into the project, or give run_dir",
    )


def folder(run_dir: str) -> Path:
    """Return the run folder a notebook writes to, made if needed.

    Args:
        run_dir: the folder, relative to the working folder; "" for `outputs/embedded` of the project.
    """
    path = Path(run_dir) if run_dir else project() / "outputs" / "embedded"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"the run folder cannot be made ({error.strerror})",
            where=str(path),
            allowed="a folder that you may write",
            todo="choose another run folder",
        ) from error
    return path
