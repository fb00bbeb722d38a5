"""Datasets: create, list, describe, alter, drop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation, confirm, raise_failures
from siltstone.cli.options import Name, names_of
from siltstone.cli.registration import DATASETS, Commands
from siltstone.errors import Corruption, Gone, InvalidRequest, NotFound, named_error

if TYPE_CHECKING:
    import pyarrow as pa

    from siltstone.dataset.dataset import Dataset
    from siltstone.lake import Lake
    from siltstone.model.reports import LoadReport


def create(  # noqa: PLR0913  # one parameter for each option
    call: Invocation,
    name: Name,
    *,
    key: Annotated[
        str | None, typer.Option("--key", metavar="A,B", help="The columns that identify a row of a keyed dataset.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="A", help="The time column of a log, which has no key.")
    ] = None,
    schema: Annotated[str | None, typer.Option("--schema", metavar="DDL", help="The columns as Spark's DDL.")] = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="FILE", help="Take the columns of a Parquet, CSV, JSON or NDJSON file."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take the columns of such a file, and load its rows on Spark."),
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="A,B", help="Columns that identify a person; not in statistics.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="A,B", help="Columns that divide the files of a log.")
    ] = None,
    sort_by: Annotated[
        str | None,
        typer.Option("--sort-by", metavar="A,B", help="Columns that files of a log are sorted by (default: time)."),
    ] = None,
    cluster_by: Annotated[
        str | None, typer.Option("--cluster-by", metavar="A,B", help="Columns that silt cluster orders a log by.")
    ] = None,
    dedup_by: Annotated[
        str | None,
        typer.Option("--dedup-by", metavar="A,B", help="Of rows of a log that are equal in these columns, keep one."),
    ] = None,
    survivor: Annotated[
        str | None, typer.Option("--survivor", metavar="first|last", help="Which duplicate survives (default: first).")
    ] = None,
) -> None:
    r"""Create a keyed dataset or a log.

    An identical dataset that exists already stays as it is. --from loads its file into it.

    \b
    silt create crm.sales.candidates --key candidate_id --subject candidate_id \
        --schema 'candidate_id STRING, name STRING, score DOUBLE, at TIMESTAMP'
    silt create crm.sales.calls --key call_id --like calls.parquet
    silt create crm.sales.calls --key call_id --from calls.parquet
    silt create web.eu.clicks --time at --subject visitor --partition-by region \
        --schema 'at TIMESTAMP, visitor STRING, region STRING, page STRING'
    silt create web.eu.orders --time at --dedup-by order_id,at --survivor last \
        --schema 'at TIMESTAMP, order_id STRING, total DOUBLE'
    """
    if key is None and time is None:
        raise InvalidRequest("Name the key (--key) or the time of a log (--time); see silt create --help.")
    if [schema, like, source].count(None) != 2:  # noqa: PLR2004  # one of three
        raise InvalidRequest("Pass the columns as --schema DDL, --like FILE or --from FILE; one of the three.")
    with call.working(f"Loading {source} on Spark") if source is not None else call.open() as lake:
        columns: pa.Schema | str | None = schema
        if file := like or source:
            from siltstone.dataset.load.schema_inference import columns_of

            columns = columns_of(file)
        made = lake.create(
            name,
            columns,
            key=names_of(key),
            time=time,
            subject=names_of(subject),
            partition_by=names_of(partition_by),
            sort_by=names_of(sort_by),
            cluster_by=names_of(cluster_by),
            dedup_by=names_of(dedup_by),
            survivor=survivor,
        )
        report = None if source is None else _load_created(lake, made, source)
        info, is_new = made.info(), made.registration.is_new
    what = f"key {', '.join(info.key)}" if info.time is None else f"a log by {info.time}"

    def people() -> None:
        if is_new:
            render.write_line(f"Created dataset {info.name}, {what}.")
        else:
            unchanged = "" if report is not None else " It was left unchanged."
            render.write_line(f"Dataset {info.name} exists already, {what}.{unchanged}")
        if report is not None:
            rows = [[column["name"], column["type"], "yes" if column["nullable"] else "no"] for column in info.columns]
            render.write_table(["column", "type", "nullable"], rows)
            before = "The file was loaded before and is left out; silt ingest --reload loads it once more."
            render.write_line(before if report.files_skipped else f"Loaded {render.counted(report.rows, 'row')}.")

    loaded = {} if report is None else {"loaded": report.to_dict()}
    call.answer(info.to_dict() | {"is_new": is_new} | loaded, people)


def _load_created(lake: "Lake", made: "Dataset", source: Path) -> "LoadReport":
    """Load the file. If it is refused, drop a dataset that this command has created, while it is unused."""
    try:
        return made.ingest(source)
    except InvalidRequest as error:
        lake.drop_unused(made)
        raise InvalidRequest(
            f"{error} silt create has no options for a load: use --like FILE, then silt ingest."
        ) from error


def list_datasets(call: Invocation) -> None:
    r"""List the datasets of the lake.

    A dataset that cannot be read is listed as broken.

    \b
    silt list
    silt list --json
    """
    with call.open() as lake:
        infos = lake.datasets()

    def people() -> None:
        try:
            lake.require_exists()
        except NotFound as note:  # an empty list is not an error, but the path may be wrong
            render.write_note(str(note))
            return
        if not infos:
            render.write_line(f"No datasets in lake {lake.path}.")
            return
        render.write_table(
            ["dataset", "kind", "key or time", "subject", "columns", "created at"],
            [
                [i.name, i.kind, i.time or ", ".join(i.key), ", ".join(i.subject), len(i.columns), i.created_at]
                for i in infos
            ],
            numbers=["columns"],
        )

    call.answer([info.to_dict() for info in infos], people)
    raise_failures(
        call, [named_error(info.broken_kind, info.broken, reason=info.broken_reason) for info in infos if info.broken]
    )


def describe(call: Invocation, name: Name) -> None:
    r"""Show a dataset's columns, key or time, subject and folder.

    The output also has its fingerprint, by which datasets are compared.

    \b
    silt describe crm.sales.candidates
    """
    with call.open() as lake:
        dataset = lake.dataset(name)
        info, path = dataset.info(), str(dataset.path)

    def people() -> None:
        render.write_facts(
            {
                "dataset": info.name,
                "kind": info.kind,
                "key": ", ".join(info.key) or None,
                "time": info.time,
                "subject": ", ".join(info.subject) or None,
                "partition by": ", ".join(info.partition_by) or None,
                "sort by": ", ".join(info.sort_by) or None,
                "cluster by": ", ".join(info.cluster_by) or None,
                "dedup by": f"{', '.join(info.dedup_by)}; the {info.survivor} survives" if info.dedup_by else None,
                "fingerprint": info.fingerprint,
                "created at": info.created_at,
                "path": path,
            }
        )
        _write_columns(info.columns)

    call.answer({**info.to_dict(), "path": path}, people)


def _write_columns(columns: "list[dict[str, Any]]") -> None:
    """Show columns. Properties that no column has are left out."""
    plain = [column | {"tags": ", ".join(column.get("tags", []))} for column in columns]
    extra = [name for name in ("default", "tags", "comment") if any(column.get(name) for column in plain)]
    rows = [
        [c["name"], c["type"], "" if c["nullable"] else "not null", *[c.get(name, "") for name in extra]] for c in plain
    ]
    render.write_table(["column", "type", "", *extra], rows)


def alter(
    call: Invocation,
    name: Name,
    *,
    add: Annotated[str | None, typer.Option("--add", metavar="DDL", help="Columns to add, as Spark's DDL.")] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(
            "--default", metavar="COLUMN=VALUE", help="The value of older rows in an added column; may be repeated."
        ),
    ] = None,
    widen: Annotated[
        list[str] | None, typer.Option("--widen", metavar="COLUMN=TYPE", help="A wider type; may be repeated.")
    ] = None,
    comment: Annotated[
        list[str] | None,
        typer.Option("--comment", metavar="COLUMN=TEXT", help="A comment; without a text it is removed."),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="COLUMN=A,B", help="The column's tags; without any they are removed."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
) -> None:
    r"""Add columns, widen types, comment and tag columns.

    Readers and writers continue meanwhile. Files are not rewritten. Types can be widened from an integer type to a
    longer one, and from float to double. Types of the key cannot be widened.

    \b
    silt alter crm.sales.candidates --add 'score BIGINT, source STRING' --default source=import
    silt alter crm.sales.candidates --widen calls=BIGINT --dry-run
    silt alter crm.sales.candidates --comment name='as it is in the passport' --tag name=pii,eu
    """
    with call.open() as lake:
        report = lake.dataset(name).alter(
            add=add,
            widen=_pairs(widen, "--widen"),
            comments={column: text or None for column, text in _pairs(comment, "--comment").items()},
            tags={column: names_of(text) for column, text in _pairs(tag, "--tag").items()},
            defaults=_pairs(default, "--default"),
            dry_run=dry_run,
        )

    def people() -> None:
        verb = "would change" if dry_run else "changed"
        changed = f"{verb}: {'; '.join(report.changed)}" if report.changed else "has all of that already"
        render.write_line(f"{name} {changed}.")
        _write_columns(report.columns)

    call.answer(report.to_dict(), people)


def _pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Parse COLUMN=VALUE texts. Each column is allowed once."""
    pairs: dict[str, str] = {}
    for text in texts or []:
        column, equals, value = text.partition("=")
        if not equals or not column.strip() or column.strip() in pairs:
            raise InvalidRequest(f"{option} takes COLUMN=VALUE, each column once, not {text!r}. Nothing was changed.")
        pairs[column.strip()] = value
    return pairs


def drop(
    call: Invocation,
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and change nothing.")] = False,
) -> None:
    r"""Drop a dataset and delete its files.

    This cannot be undone. A broken dataset can be dropped, too.

    \b
    silt drop crm.sales.calls --dry-run
    silt drop crm.sales.calls --yes
    """
    with call.open() as lake:
        rows, size, what = _extent(lake, name)
        if not dry_run:
            confirm(f"Drop {what}?", yes=yes)
            lake.drop(name)
    call.answer(
        {"dataset": name, "dropped": not dry_run, "dry_run": dry_run, "rows": rows, "bytes": size},
        lambda: render.write_line(f"{'Would drop' if dry_run else 'Dropped'} {what}."),
    )


def _extent(lake: "Lake", name: str) -> tuple[int | None, int | None, str]:
    """Return the rows and bytes of a dataset, and both as text. For a broken one, the text is its error."""
    try:
        dataset = lake.dataset(name)
        status = dataset.status()
    except (Corruption, Gone) as broken:
        return None, None, f"{name}, which cannot be read ({str(broken).rstrip('.')})"
    rows = status.rows_in_base + status.backlog_rows
    size = status.base_bytes + status.backlog_bytes + status.unreferenced_bytes
    text = f"{name}: {render.counted(rows, 'row')} in base and changes, {render.size(size)}, at {dataset.path}"
    return rows, size, text


COMMANDS: Final[Commands] = {
    DATASETS: {"create": create, "list": list_datasets, "describe": describe, "alter": alter, "drop": drop}
}
