"""Allow list of a query, as data: functions, types, names, and the nodes of the tree with their arguments.

The result of a listed function depends on its arguments alone. A function in `VOLATILE` may also depend on the clock or
on chance. No function accesses files, the network or the process. A test compares `docs/sql.md` with these lists.

`syntax` rejects every other node and argument. `sql_writer` writes the listed ones.
"""

from typing import Final

from sqlglot import exp

from siltstone.query.gate.parser import COMMA_JOIN, Pivoted, Positive, Quantified, Unpivoted, UnsignedShift

FUNCTIONS_BY_GROUP: Final[dict[str, str]] = {
    "Aggregates": """
        any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or
        collect_list collect_set corr count count_if covar_pop covar_samp every first first_value grouping grouping_id
        kurtosis last last_value listagg max max_by mean median min min_by mode percentile percentile_approx
        percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
        regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp
        variance
    """,
    "Windows": "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number",
    "Numbers": """
        abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp
        expm1 factorial floor greatest hex hypot isnan least ln log log10 log1p log2 mod negative pi pmod positive pow power
        radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add
        try_divide try_mod try_multiply try_subtract unhex width_bucket bit_count bit_get getbit
    """,
    "Strings": """
        ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains decode
        elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left length len
        levenshtein locate lower lpad ltrim luhn_check mask octet_length overlay position printf quote regexp_count
        regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse
        right rpad rtrim sentences soundex space split split_part startswith substr substring substring_index to_char
        to_number to_varchar translate trim try_to_number ucase unbase64 upper url_decode url_encode
    """,
    "Hashes": "crc32 hash md5 sha sha1 sha2 xxhash64",
    "Dates and times": """
        add_months convert_timezone curdate current_date current_timestamp date date_add date_diff date_format
        date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
        dayofyear extract from_unixtime from_utc_timestamp hour last_day localtimestamp make_date make_dt_interval
        make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname
        months_between next_day now quarter second timestamp timestamp_micros timestamp_millis timestamp_seconds to_date
        to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_to_date
        try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear year
    """,
    "Conditions and nulls": """
        assert_true coalesce equal_null if ifnull isnotnull isnull nanvl nullif nullifzero nvl nvl2 zeroifnull
    """,
    "Casts by name": "bigint binary boolean decimal double float int smallint string tinyint typeof",
    "Arrays, maps and structs": """
        array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
        array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
        array_union arrays_overlap arrays_zip cardinality element_at flatten get map map_concat map_contains_key
        map_entries map_from_arrays map_from_entries map_keys map_values named_struct sequence size slice sort_array
        str_to_map struct try_element_at
    """,
    "With lambdas": """
        aggregate exists filter forall map_filter map_zip_with reduce transform transform_keys transform_values zip_with
    """,
    "JSON in strings": "from_json get_json_object json_array_length json_object_keys json_tuple schema_of_json to_json",
    "Rows out of values": "explode explode_outer inline inline_outer posexplode posexplode_outer stack",
    "Chance": "rand randn random shuffle uniform uuid",
}
"""Functions by Spark's names."""

FUNCTIONS: Final = frozenset(name for names in FUNCTIONS_BY_GROUP.values() for name in names.split())
GENERATORS: Final = frozenset({*FUNCTIONS_BY_GROUP["Rows out of values"].split(), "json_tuple"})
"""Functions that generate rows: in the list of a SELECT, after LATERAL VIEW or after LATERAL."""
VOLATILE: Final = frozenset(FUNCTIONS_BY_GROUP["Chance"].split()).union(
    ("curdate", "current_date", "current_timestamp", "localtimestamp", "now", "unix_timestamp", "to_unix_timestamp")
)
"""Functions with a different result each time; `unix_timestamp` without an argument is the current time."""

SESSION_NAMES: Final = frozenset(
    {"current_catalog", "current_database", "current_schema", "current_user", "session_user", "user"}
)
"""Names that Spark resolves from its own process if no column has them. They need a table name before them."""
VOLATILE_NAMES: Final = frozenset({"current_date", "current_timestamp", "current_time", "localtimestamp"})
HIDDEN_COLUMNS: Final = frozenset({"_metadata"})
"""Columns that Spark adds to files. They contain file paths."""

_PLAIN_TYPES: Final = "BIGINT BINARY BOOLEAN DATE DECIMAL DOUBLE FLOAT INT SMALLINT TINYINT"
TYPES: Final[dict[str, str]] = {
    **{name: name for name in _PLAIN_TYPES.split()},
    "TEXT": "STRING",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TIMESTAMPTZ": "TIMESTAMP",
}
"""Types that a query may cast to, from sqlglot's name to Spark's. ARRAY, MAP and STRUCT of these are allowed, too."""

_FIELDS_OF_TIME: Final = """
    YEAR YEARS YR YRS YEAROFWEEK QUARTER QTR MONTH MON MONS MONTHS WEEK W WEEKS DAY D DAYS DAYOFWEEK DOW DAYOFWEEK_ISO
    DOW_ISO DOY HOUR H HOURS HR HRS MINUTE M MIN MINS MINUTES SECOND S SEC SECONDS SECS
"""
FIELDS_OF_TIME: Final = frozenset(_FIELDS_OF_TIME.split())
"""Fields that EXTRACT accepts."""
WITH_UNIT: Final = frozenset({"date_add", "date_diff", "dateadd", "datediff"})
"""Functions that may have a unit before two other arguments, as in ``dateadd(DAY, 1, d)``."""
UNITS_OF_TIME: Final = frozenset(
    ["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"]
)
"""Units of the functions in `WITH_UNIT`."""

BINARY_OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.Add: "+",
    exp.And: "AND",
    exp.BitwiseAnd: "&",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseOr: "|",
    exp.BitwiseRightShift: ">>",
    exp.BitwiseXor: "^",
    exp.DPipe: "||",
    exp.Div: "/",
    exp.EQ: "=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.IntDiv: "DIV",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.Mod: "%",
    exp.Mul: "*",
    exp.NEQ: "<>",
    exp.NullSafeEQ: "<=>",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.Or: "OR",
    exp.Sub: "-",
    UnsignedShift: ">>>",
}
"""Binary operators and their spelling."""
LIKES: Final[dict[type[exp.Expr], str]] = {exp.Like: "LIKE", exp.ILike: "ILIKE", exp.RegexpLike: "RLIKE"}
SET_OPERATIONS: Final = (exp.Union, exp.Intersect, exp.Except)
_SIDED: Final = [f"{side}{outer}JOIN" for side in ("LEFT ", "RIGHT ", "FULL ") for outer in ("", "OUTER ")]
_INNER: Final = ["JOIN", "INNER JOIN"]
JOINS: Final = frozenset(
    [
        *(*_INNER, *_SIDED),
        *(f"NATURAL {name}" for name in (*_INNER, *_SIDED)),
        *("CROSS JOIN", "SEMI JOIN", "LEFT SEMI JOIN", "ANTI JOIN", "LEFT ANTI JOIN", COMMA_JOIN),
    ]
)
_CLAUSES: Final = "with_ where group having qualify windows order limit offset"
ARGUMENTS: Final[dict[type[exp.Expr], str]] = {
    exp.Alias: "this alias",
    exp.Aliases: "this expressions",
    exp.Anonymous: "this expressions",
    exp.Between: "this low high",
    exp.BitwiseNot: "this",
    exp.Boolean: "this",
    exp.Bracket: "this expressions",
    exp.CTE: "this alias",
    exp.Case: "this ifs default",
    exp.Cast: "this to safe",
    exp.Column: "this table db catalog",
    exp.ColumnDef: "this kind",
    exp.Cube: "expressions",
    exp.DataType: "this expressions nested",
    exp.DataTypeParam: "this",
    exp.Distinct: "expressions",
    exp.Dot: "this expression",
    exp.Escape: "this expression",
    exp.Exists: "this",
    exp.Extract: "this expression",
    exp.Filter: "this expression",
    exp.From: "this",
    exp.Group: "expressions all rollup cube grouping_sets",
    exp.GroupingSets: "expressions",
    exp.Having: "this",
    exp.HexString: "this",
    exp.Identifier: "this quoted",
    exp.If: "this true",
    exp.IgnoreNulls: "this",
    exp.In: "this expressions query",
    exp.Interval: "this unit",
    exp.IntervalSpan: "this expression",
    exp.Is: "this expression",
    exp.Join: "this side kind method on using",
    exp.Lambda: "this expressions",
    exp.Lateral: "this view outer alias",
    exp.Limit: "expression",
    exp.Literal: "this is_string",
    exp.Neg: "this",
    exp.Not: "this",
    exp.Null: "",
    exp.Offset: "expression",
    exp.Order: "expressions",
    exp.Ordered: "this desc nulls_first",
    exp.Paren: "this",
    exp.Placeholder: "this",
    exp.Qualify: "this",
    exp.RespectNulls: "this",
    exp.Rollup: "expressions",
    exp.Select: f"{_CLAUSES} distinct expressions from_ joins laterals",
    exp.Star: "except_",
    exp.Subquery: f"{_CLAUSES} this alias joins pivots",
    exp.Table: "this db catalog alias joins pivots",
    exp.TableAlias: "this columns",
    exp.Trim: "this expression position",
    exp.TryCast: "this to safe",
    exp.Tuple: "expressions",
    exp.Values: "expressions alias",
    exp.Var: "this",
    exp.Where: "this",
    exp.Window: "this partition_by order spec alias over",
    exp.WindowSpec: "kind start start_side end end_side",
    exp.With: "expressions recursive",
    exp.WithinGroup: "this expression",
    Pivoted: "expressions columns values",
    Positive: "this",
    Quantified: "this expressions",
    Unpivoted: "this values expressions nulls alias",
    **dict.fromkeys(LIKES, "this expression negate"),
    **dict.fromkeys(BINARY_OPERATORS, "this expression safe typed"),
    **dict.fromkeys(SET_OPERATIONS, f"{_CLAUSES} this expression distinct"),
}
"""The allowed arguments of each kind of node."""
_RELATIONS: Final = (exp.Table, exp.Subquery, exp.Values, exp.Lateral)
ARGUMENT_KINDS: Final[dict[tuple[type[exp.Expr], str], tuple[type[exp.Expr], ...]]] = {
    (exp.CTE, "alias"): (exp.TableAlias,),
    (exp.Column, "this"): (exp.Identifier, exp.Star),
    **{(exp.Column, part): (exp.Identifier,) for part in ("table", "db", "catalog")},
    (exp.Escape, "this"): tuple(LIKES),
    (exp.From, "this"): _RELATIONS,
    (exp.Interval, "unit"): (exp.Var, exp.IntervalSpan),
    **{(exp.IntervalSpan, side): (exp.Var,) for side in ("this", "expression")},
    (exp.Is, "expression"): (exp.Null, exp.Boolean),
    (exp.Join, "this"): _RELATIONS,
    (exp.Lambda, "expressions"): (exp.Identifier,),
    (exp.Select, "windows"): (exp.Window,),
    (exp.Subquery, "this"): (exp.Query, exp.Table, exp.Values),
    (exp.TableAlias, "columns"): (exp.Identifier,),
    **{(kind, side): (exp.Query,) for kind in SET_OPERATIONS for side in ("this", "expression")},
}
"""The kinds of node that an argument may be, if not every kind is allowed."""
TEXT_ARGUMENTS: Final = frozenset(
    {
        *((exp.Anonymous, "this"), (exp.HexString, "this"), (exp.Identifier, "this"), (exp.Literal, "this")),
        *((exp.Placeholder, "this"), (exp.Var, "this"), (Quantified, "this")),
        *((exp.Trim, "position"), (Unpivoted, "nulls"), (exp.Window, "over")),
        *((exp.Join, "side"), (exp.Join, "kind"), (exp.Join, "method")),
        *((exp.WindowSpec, name) for name in ARGUMENTS[exp.WindowSpec].split()),
    }
)
"""Arguments that may be text.

Each is escaped, compared with a list, or limited by the tokenizer: the writer copies it.
"""
PARENTS: Final[dict[type[exp.Expr], tuple[type[exp.Expr], ...]]] = {
    exp.If: (exp.Case,),
    exp.IntervalSpan: (exp.Interval,),
    exp.Var: (exp.Interval, exp.IntervalSpan, exp.Extract, exp.Ordered),
    Quantified: (exp.Like, exp.ILike),
}
"""The kinds of node that a node may be an argument of, if not every kind is allowed."""
