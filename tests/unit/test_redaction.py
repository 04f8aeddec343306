"""Secrets in texts: what is replaced, in which encodings, and what is left alone."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import logging
import sys
import urllib.parse

import pytest

from airflow_provider.runtime.checkpoint.source_end import SourceEnd
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.explanation import Explanation, Failure, FailureClass
from airflow_provider.runtime.errors.redaction import RedactedStream, Secrets
from airflow_provider.runtime.jobdir.end_of_input import SourceEnds
from airflow_provider.runtime.jobdir.run_spec import read_secrets
from airflow_provider.runtime.sources.locations import ReadLocation
from airflow_provider.runtime.sources.spark import SparkSource
from airflow_provider.runtime.storage.documents import Document
from airflow_provider.runtime.storage.open import open_storage

_VALUE = "p'e\"p\\per-4711/ü=?`"
_SECRETS = Secrets.of({"salt": _VALUE, "pin": "4711", "key": "k7", "none": ""})


@pytest.fixture
def _remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process know a secret for one test."""
    monkeypatch.setattr(redaction, "_known", Secrets({}))
    redaction.remember({"salt": "pepper-4711-hunter2", "word": "postgres"})


@pytest.mark.parametrize(
    "text",
    [
        _VALUE,
        json.dumps(_VALUE)[1:-1],
        json.dumps(_VALUE, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(_VALUE))[3:-3],
        repr(_VALUE)[1:-1],
        _VALUE.replace("'", "''"),
        html.escape(_VALUE),
        urllib.parse.quote(_VALUE, safe=""),
        urllib.parse.quote(_VALUE).lower(),
        urllib.parse.quote_plus(_VALUE),
        _VALUE.encode().hex(),
        _VALUE.encode().hex().upper(),
        _VALUE.encode().hex(" "),
        _VALUE.upper(),
    ],
)
def test_each_spelling_of_a_strong_value_is_replaced(text: str) -> None:
    """A value is found as it is, and escaped as JSON, Python, SQL, HTML, an address or digits."""
    assert _SECRETS.redact(f"before {text}after") == "before <parameter salt>after"


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_of_a_text_around_a_value_is_replaced(before: int, encode: object) -> None:
    """Wherever the value stands in the encoded bytes, none of its characters can be decoded."""
    assert callable(encode)
    text = encode(b"x" * before + _VALUE.encode() + b"yz").decode()
    redacted = _SECRETS.redact(text)
    left = redacted.replace("<parameter salt>", "")
    assert (True, True) == ("<parameter salt>" in redacted, len(left) <= len(text) - 20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port 4711, run 47112", "port <parameter pin>, run 47112"),
        ("k7 'k7' k77", "k7 '<parameter key>' k77"),
        ("nothing here", "nothing here"),
    ],
)
def test_weak_values_are_found_where_they_stand_alone(text: str, expected: str) -> None:
    """A value of four characters is a whole word, a shorter one stands between quotes."""
    assert expected == _SECRETS.redact(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hunter2", "weak"),
        ("hunter22", "strong"),
        ("postgres", "weak"),
        ("12345678", "weak"),
        ("correcthorsebattery", "strong"),
    ],
)
def test_a_value_is_strong_if_other_text_hardly_has_it(value: str, expected: str) -> None:
    """Eight characters make a strong value, but words and numbers need sixteen."""
    assert expected == ("strong" if redaction.is_strong(value) else "weak")


def test_each_line_of_a_private_key_is_a_secret() -> None:
    """Logs and tables have the lines of a value apart; short ones such as the last are kept."""
    lines = ["-----BEGIN KEY-----", "MIIEvQIBADANBgkqhkiG", "AAA="]
    secrets = Secrets.of({"pem": "\n".join(lines)})
    assert "x <parameter pem> y" == secrets.redact(f"x {lines[1]} y")


@pytest.mark.parametrize(
    ("literal", "data_type", "expected"),
    [
        ("pepper-4711-hunter2", "string", "<parameter salt>"),
        ("a pepper-4711-hunter2 b", "string", "a <parameter salt> b"),
        ("4711", "integer", "<parameter pin>"),
        ("47110", "integer", "47110"),
        ("7", "integer", "7"),
        ("7", "string", "<parameter digit>"),
        ("17", "string", "17"),
    ],
)
def test_a_literal_with_a_secret_names_the_parameter(
    literal: str, data_type: str, expected: str
) -> None:
    """Literals in a plan are compared without secrets; short numbers are left as they are."""
    secrets = Secrets.of({"salt": "pepper-4711-hunter2", "pin": "04711", "digit": "7"})
    node = {
        "class": "org.apache.spark.sql.catalyst.expressions.Literal",
        "num-children": 0,
        "value": literal,
        "dataType": data_type,
    }
    plan = [{"class": "x.Project", "projectList": [[node]], "num-children": 0}]
    assert expected == secrets.redact_plan(plan)[0]["projectList"][0][0]["value"]


def test_a_rotated_secret_gives_the_same_plan() -> None:
    """Two values of one parameter leave no difference in what is compared."""
    plans = [
        Secrets.of({"salt": value}).redact_plan(
            [{"class": "x.Literal", "value": f"a{value}b", "dataType": "string"}]
        )
        for value in ("pepper-4711-hunter2", "pepper-0815-rotated")
    ]
    assert plans[0] == plans[1]


def test_a_process_remembers_each_value_of_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads secrets remembers them, a rotated one beside the value before."""
    monkeypatch.setattr(redaction, "_known", Secrets({}))
    for value in ("hunter22-first\n", "hunter22-second"):
        read_secrets({"salt": "SALT"}, {"SALT": value})
    text = "hunter22-first hunter22-second"
    assert "<parameter salt> <parameter salt>" == redaction.redact(text)


@pytest.mark.usefixtures("_remembered")
def test_output_and_logs_have_no_secret() -> None:
    """What Python code prints or logs is redacted where it leaves, tracebacks, too."""
    raw = io.StringIO()
    stream = RedactedStream(raw, "stderr")
    handler = logging.StreamHandler(stream)
    error = ValueError("pepper-4711-hunter2")
    handler.emit(logging.LogRecord("x", 20, "f", 1, "a %s", (error,), (ValueError, error, None)))
    print("printed", "pepper-4711-hunter2", "to postgres", file=stream)
    stream.writelines(["pepper-4711-hunter2\n"])
    assert (0, 4, 1) == (
        raw.getvalue().count("4711"),
        raw.getvalue().count("<parameter salt>"),
        raw.getvalue().count("<parameter word>"),
    )


@pytest.mark.usefixtures("_remembered")
def test_output_is_the_process_s_again_after_a_command() -> None:
    """A command redacts what is printed while it runs, and puts the streams back."""
    before = sys.stdout, sys.stderr
    with redaction.redacted_output():
        inside = type(sys.stdout), type(sys.stderr)
    assert (before, (RedactedStream, RedactedStream)) == ((sys.stdout, sys.stderr), inside)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Noted(Document):
    kind: str
    text: str
    by: dict[str, str]


@pytest.mark.usefixtures("_remembered")
def test_documents_have_no_strong_secret_and_keep_their_words() -> None:
    """A document is stored without a strong value; a weak one may be a word of its own."""
    storage = open_storage("memory://redaction")
    note = _Noted(kind="postgres", text="a pepper-4711-hunter2", by={"pepper-4711-hunter2": "x"})
    note.put(storage, "note.json")
    assert {
        "version": 1,
        "kind": "postgres",
        "text": "a <parameter salt>",
        "by": {"<parameter salt>": "x"},
    } == json.loads(storage.read("note.json"))


@pytest.mark.usefixtures("_remembered")
def test_a_document_whose_texts_are_acted_on_is_refused() -> None:
    """The name of a file that was replaced would be that of another file."""
    storage = open_storage("memory://redaction-exact")
    ends = SourceEnds(
        query_id="q",
        query="out",
        run_id="r1",
        token=1,
        batch=0,
        at="2026-01-01T00:00:00.000Z",
        ends=[SourceEnd("rows", 0, offset='{"pepper-4711-hunter2": 3}')],
    )
    with pytest.raises(ConfigError, match="SourceEnds: .*'salt'") as raised:
        ends.put(storage, "ends/q.json")
    assert (False, False) == ("hunter2" in str(raised.value), storage.exists("ends/q.json"))


@pytest.mark.usefixtures("_remembered")
def test_failures_have_no_secret_however_weak() -> None:
    """The texts of errors in records and on a screen are redacted before they are cut."""
    failure = Failure(
        FailureClass.RECOVERABLE,
        reason="no postgres with pepper-4711-hunter2",
        condition="postgres",
        query=None,
        host="h",
        root_cause="ValueError: pepper-4711-hunter2",
    )
    long = "x" * 190 + " pepper-4711-hunter2"
    screen = " ".join(Explanation(what=long).screen(1, "nothing"))
    assert (
        "no <parameter word> with <parameter salt>",
        "ValueError: <parameter salt>",
        "postgres",
        False,
    ) == (failure.reason, failure.root_cause, failure.condition, "hunter2" in screen)


def test_the_digest_of_options_does_not_change_with_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a source reads is the same after its password was rotated."""
    monkeypatch.setattr(redaction, "_known", Secrets({}))
    digests = []
    for value in ("hunter22-first", "hunter22-second"):
        redaction.remember({"password": value})
        options = {"url": "jdbc:x", "password": value}
        digests.append(ReadLocation.of("rows", SparkSource("jdbc", None, None, options)).options)
    assert digests[0] == digests[1]
