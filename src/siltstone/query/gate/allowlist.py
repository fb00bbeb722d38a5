"""Allowed functions, types and names of a query, as data. A test compares `docs/sql.md` with it.

The result of a listed function depends on its arguments alone. A function in `VOLATILE` may also depend on the clock or
on chance. No function accesses files, the network or the process. `query/gate/syntax.py` lists the syntax.
"""

from typing import Final

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
VOLATILE: Final = frozenset(
    {
        *FUNCTIONS_BY_GROUP["Chance"].split(),
        "curdate",
        "current_date",
        "current_timestamp",
        "localtimestamp",
        "now",
        "unix_timestamp",
        "to_unix_timestamp",
    }
)
"""Functions with a different result each time; `unix_timestamp` without an argument is the current time."""

SESSION_NAMES: Final = frozenset(
    {"current_catalog", "current_database", "current_schema", "current_user", "session_user", "user"}
)
"""Names that Spark resolves from its own process if no column has them. They need a table name before them."""
VOLATILE_NAMES: Final = frozenset({"current_date", "current_timestamp", "current_time", "localtimestamp"})
HIDDEN_COLUMNS: Final = frozenset({"_metadata"})
"""Columns that Spark adds to files. They contain file paths."""

TYPES: Final[dict[str, str]] = {
    "BIGINT": "BIGINT",
    "BINARY": "BINARY",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "DECIMAL": "DECIMAL",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "INT": "INT",
    "SMALLINT": "SMALLINT",
    "TEXT": "STRING",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TIMESTAMPTZ": "TIMESTAMP",
    "TINYINT": "TINYINT",
}
"""Types that a query may cast to, from sqlglot's name to Spark's. ARRAY, MAP and STRUCT of these are allowed, too."""

_FIELDS_OF_TIME: Final = """
    YEAR YEARS YR YRS YEAROFWEEK QUARTER QTR MONTH MON MONS MONTHS WEEK W WEEKS DAY D DAYS DAYOFWEEK DOW DAYOFWEEK_ISO
    DOW_ISO DOY HOUR H HOURS HR HRS MINUTE M MIN MINS MINUTES SECOND S SEC SECONDS SECS
"""
FIELDS_OF_TIME: Final = frozenset(_FIELDS_OF_TIME.split())
"""Fields that EXTRACT accepts."""
