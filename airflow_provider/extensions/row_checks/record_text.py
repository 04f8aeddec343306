"""The text of one record: what it gives by a schema, whether it fits, and why not.

A record fits if Spark can read each of its fields, and if nothing follows what is read: of JSON no
second value and no other text, of CSV no field whose quote is never closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.extensions.row_checks.record_lines import NO_CHARACTER, option
from airflow_provider.extensions.row_checks.taps import without_errors
from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.queries.taps import ADDED, readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

RAW: Final = "_corrupt_record"  # Spark's own name: with it, CSV is parsed whole
_PERMISSIVE: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW}
_END: Final = "__spark_stream_end"  # stands behind a text, and has to be found there
_TEXTS: Final = f"{ADDED}texts"
_TYPED: Final = f"{ADDED}typed"
_SHOWN: Final = 100  # characters of a field


class RecordText(NamedTuple):
    """How a text is read.

    Attributes:
        kind: ``csv`` or ``json``.
        schema: of the record.
        options: of Spark's reader.
    """

    kind: str
    schema: StructType
    options: Mapping[str, str]

    @property
    def fields(self) -> StructType:
        """The schema with :data:`RAW`, which has the text of a record that Spark cannot read."""
        from pyspark.sql.types import StringType, StructField, StructType

        return StructType([*self.schema.fields, StructField(RAW, StringType())])

    def parsed(self, text: Column) -> Column:
        """Return a struct of :attr:`fields`; NULL for a text of JSON without any value."""
        from pyspark.sql import functions as sf

        options = {**self.options, **_PERMISSIVE}
        if self.kind == "json":
            return sf.from_json(text, self.fields, options)
        return sf.from_csv(_for_csv(text), _ddl(self.fields), options)

    def is_one(self, text: Column, parsed: Column) -> Column:
        """Whether *text*, which was *parsed*, is one record and nothing more; never NULL."""
        from pyspark.sql import functions as sf

        fits = parsed.isNotNull() & parsed[RAW].isNull()
        if self.kind == "csv":
            return fits & ~self._has_open_quote(text)
        # Mostly the first brace that closes is the last character: then nothing can follow it.
        nothing_follows = sf.when(text.rlike(_ONE_BRACE), sf.lit(_YES)).otherwise(self._ends(text))
        return sf.when(fits & _is_utf8(text), nothing_follows).otherwise(sf.lit(_NO))

    def elements(self, text: Column) -> Column:
        """Return what an array of JSON has, each a struct of :attr:`fields`.

        NULL for another text, if one of them does not fit, or if something follows.
        """
        from pyspark.sql import functions as sf
        from pyspark.sql.types import ArrayType

        behind = sf.lit(f'\n,[{{"{RAW}":"{_END}"}}]]')
        both = sf.from_json(
            sf.concat(sf.lit("["), text, behind),
            ArrayType(ArrayType(self.fields)),
            {**self.options, "mode": "FAILFAST"},
        )

        def checked(found: Column) -> Column:
            is_whole = (sf.size(found) == _TWO) & (found[1][0][RAW] == _END)
            return sf.when(is_whole & ~sf.exists(found[0], lambda each: each.isNull()), found[0])

        once = sf.transform(sf.array(without_errors(both)), checked)
        return sf.when(_is_array(text) & _is_utf8(text), once[0])

    def _ends(self, text: Column) -> Column:
        """Whether nothing follows the first value of a text of JSON; never NULL."""
        from pyspark.sql import functions as sf

        found = sf.from_json(
            sf.concat(sf.lit("["), text, sf.lit(f'\n,{{"{_END}":"{_END}"}}]')),
            f"array<struct<{_END}:string>>",
            {**self.options, **_PERMISSIVE},
        )
        no_text = sf.lit(None).cast("string")
        alone = sf.array(
            sf.struct(no_text.alias(_END)), sf.struct(sf.lit(_END).cast("string").alias(_END))
        )
        return found.eqNullSafe(alone)

    def _has_open_quote(self, text: Column) -> Column:
        from pyspark.sql import functions as sf

        quote = option(self.options, "quote", default='"')
        if quote in {"", "\0"}:
            return sf.lit(_NO)
        return text.contains(quote) & text.rlike(open_quote(self.options))

    def with_reason(self, rows: DataFrame, text: Column) -> tuple[DataFrame, Column]:
        """Return *rows* with columns more, and what is wrong with a record of them.

        Spark says of it only that it is malformed.
        """
        from pyspark.sql import functions as sf

        rows = rows.withColumn(_TEXTS, self._texts(text)).withColumn(_TYPED, self.parsed(text))
        texts, typed = sf.col(_TEXTS), sf.col(_TYPED)
        wrong = []
        for field in self.schema.fields:
            kind, own = field.dataType.simpleString(), texts[field.name]
            what = sf.concat(sf.lit(f"{field.name} is no {kind}: "), sf.substring(own, 1, _SHOWN))
            wrong.append(sf.when(own.isNotNull() & typed[field.name].isNull(), what))
        found = sf.nullif(sf.concat_ws("; ", *wrong), sf.lit(""))
        if self.kind == "csv":
            count = f"has not {len(self.schema.fields)} fields"
            known = [
                sf.when(text.contains(NO_CHARACTER), "has U+FFFF, which is no character"),
                sf.when(texts[RAW].isNotNull(), count),
                sf.when(self._has_open_quote(text), "has a quote that is not closed"),
                found,
            ]
        else:
            array = "is an array with an element that does not fit, or with text behind it"
            known = [
                sf.when(~_is_utf8(text), "is no UTF-8"),
                sf.when(_is_array(text), array),
                sf.when(texts.isNull(), "is no object of JSON"),
                found,
                sf.when(~self._ends(text), "has text behind its object"),
            ]
        return rows, sf.coalesce(*known, sf.lit("does not fit the schema"))

    def _texts(self, text: Column) -> Column:
        from pyspark.sql import functions as sf

        options = {**self.options, **_PERMISSIVE}
        if self.kind == "json":
            return sf.from_json(text, "map<string,string>", options)
        names = ", ".join(f"{quoted(each.name)} string" for each in self.fields)
        return sf.from_csv(_for_csv(text), names, options)


_ONE_BRACE: Final = r"\A\s*+\{[^}]*+\}\s*+\z"  # an array may end before its line does
_YES: Final = True
_NO: Final = False
_TWO: Final = 2


def open_quote(options: Mapping[str, str]) -> str:
    """Return the pattern of a line of CSV in which a field begins with a quote, and none follows.

    Its parts are possessive, so that Java matches them in a loop and without going back.
    """
    quote = option(options, "quote", default='"')
    escape = option(options, "escape", default="\\")
    escaping = option(
        options, "chartoescapequoteescaping", default="" if escape == quote else escape
    )
    sep = option(options, "sep", "delimiter", default=",").replace("\\t", "\t")
    trims = option(options, "ignoreleadingwhitespace").lower() == "true"
    q, e, x, s = map(_literal, (quote, escape, escaping, sep))
    pairs = [f"{x}{e}"] * bool(escaping) + [f"{e}{q}"] * bool(escape)
    inside = "|".join([f"[^{q}{e}{x}]++", *pairs, f"[^{q}]"])
    space = r"[\x01- ]*+" if trims else ""
    rest = f"[^{s}]*+" if len(sep) == 1 else rf"(?:(?!{s})[\s\S])*+"
    field = f"{space}(?:{q}(?:{inside})*+{q}{rest}|(?!{q}){rest})"
    return rf"\A(?:{field}{s})*+{space}{q}(?:{inside})*+\z"


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(each):x}}}" for each in text)


def _for_csv(text: Column) -> Column:
    """Return a text that ``from_csv`` can read; NULL for one after which it misreads the next."""
    from pyspark.sql import functions as sf

    return sf.when(~text.contains(NO_CHARACTER), text)


def _is_utf8(text: Column) -> Column:
    return readable(text) == text


def _is_array(text: Column) -> Column:
    return text.rlike(r"\A\s*\[")


def _ddl(schema: StructType) -> str:
    fields = ((quoted(each.name), each.dataType.simpleString()) for each in schema.fields)
    return ", ".join(f"{name} {kind}" for name, kind in fields)
