"""Messages for users from Spark errors."""

from siltstone.spark.errors import damage, error_line, names_data_file

BAD_CSV = """\
An error occurred while calling o186.parquet.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while \
reading file file:///in/bad.csv.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:875)
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] \
Malformed records are detected in record parsing: [b,null].
Parse Mode: FAILFAST. To process malformed records as null result, try setting the option 'mode' as 'PERMISSIVE'.  SQLSTATE: 22023
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.malformedRecords(QueryExecutionErrors.scala:1)
\t... 1 more
Caused by: java.lang.NumberFormatException: For input string: "two"
\t... 22 more
"""
WORKER = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: Lost task 0.0: [PYTHON_EXCEPTION]
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/lib/task.py", line 15, in <lambda>
    raise OSError(text)
KeyError: 'first'
During handling of the above exception, another exception occurred:
OSError: [Errno 28] No space left on device
"""


def test_a_bad_csv_row_is_reported_with_its_file_and_value():
    assert error_line(RuntimeError(BAD_CSV)) == (
        "Encountered error while reading file file:///in/bad.csv. "
        'Malformed records are detected in record parsing: [b,null]. For input string: "two".'
    )


def test_an_error_of_a_python_worker_is_its_last_line():
    assert error_line(RuntimeError(WORKER)) == "OSError: [Errno 28] No space left on device."


def test_an_error_of_the_query_is_reported_without_codes():
    text = "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n== SQL (line 1) ==\nSELECT 1/0"
    assert error_line(RuntimeError(text)) == "Division by zero. Use `try_divide`."


def test_a_value_in_brackets_is_not_read_as_a_code():
    text = "[CAST_INVALID_INPUT] The value '[ABC]' cannot be cast. SQLSTATE: 22018"
    assert error_line(RuntimeError(text)) == "The value '[ABC]' cannot be cast."


def test_an_error_without_a_message_has_the_name_of_its_class():
    assert error_line(RuntimeError()) == "RuntimeError."


def test_a_long_error_is_cut():
    assert len(error_line(RuntimeError("x" * 10_000))) < 600


LOST = """\
Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0 in stage 4.0: \
org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///lake/changes/data/ab.parquet.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:875)
Caused by: org.apache.parquet.io.ParquetDecodingException: could not verify page, CRC checksum verification failed
"""


def test_damage_names_the_file_though_only_the_line_of_a_lost_task_does():
    found = damage(Exception(LOST))
    assert found is not None
    assert "/lake/changes/data/ab.parquet" in str(found)
    assert "CRC checksum verification failed" in str(found)


def test_damage_takes_no_class_of_parquet_for_a_file():
    header = "can not read class org.apache.parquet.format.PageHeader: Required field 'encoding' was not present!"
    calling = "An error occurred while calling o186.parquet."
    text = f"{calling}\n[FAILED_READ_FILE.NO_HINT] Encountered error while reading file.\nCaused by: {header}"
    assert not names_data_file(Exception(text))
    found = damage(Exception(f"{text} {'x' * 600} file:///lake/changes/data/ab.parquet."))
    assert found is not None
    assert found.paths == ("///lake/changes/data/ab.parquet",)
    assert "/lake/changes/data/ab.parquet" in str(found)
