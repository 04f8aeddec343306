"""The choice that `make test-ci` takes of products of cases."""

from __future__ import annotations

import itertools

import pytest

from tests.pairwise import choose_pairwise, mark_whole


def pairs(cases):
    """Return which values meet, by their dimensions."""
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3, 3), (2, 3, 4), (5, 1, 2), (2,) * 8, (4, 4, 4, 4)])
def test_any_two_values_meet_in_a_part_of_the_product(sizes):
    """
    No pair of the product is missing, and as soon as there are three dimensions, cases are left out.
    """
    product = list(itertools.product(*map(range, sizes)))
    chosen = [product[location] for location in choose_pairwise(product)]

    assert pairs(product) == pairs(chosen)
    assert len(chosen) >= max(a * b for a, b in itertools.combinations(sizes, 2))
    if len([size for size in sizes if size > 1]) > 2:
        assert len(chosen) <= len(product) * 2 / 3


def test_a_large_product_shrinks_to_little_more_than_it_must():
    """Of 216 cases at least 36 are needed; the choice has no more than half as many again."""
    product = list(itertools.product(range(6), repeat=3))

    assert 36 <= len(choose_pairwise(product)) <= 54


def test_a_product_may_have_gaps():
    """
    Only what can meet has to: of cases that leave some out, each pair that is there is chosen.
    """
    cases = [case for case in itertools.product("abc", "xy", "12") if case[:2] != ("c", "y")]
    chosen = [cases[location] for location in choose_pairwise(cases)]

    assert pairs(cases) == pairs(chosen)
    assert len(chosen) < len(cases)


def test_what_has_one_dimension_is_kept():
    """Every value of a single dimension is chosen, and of no cases none."""
    assert [0, 1, 2] == choose_pairwise([("a",), ("b",), ("c",)])
    assert [] == choose_pairwise([])


def test_what_is_not_chosen_is_marked():
    """
    All cases stay, in their order and with their names; the others carry the mark of the product.
    """
    product = list(itertools.product("ab", "xy", "12"))
    chosen = choose_pairwise(product)
    parameters = mark_whole(product, chosen, ids=map("".join, product))

    assert product == [each.values for each in parameters]
    assert ["".join(case) for case in product] == [each.id for each in parameters]
    whole = [position for position, each in enumerate(parameters) if each.marks]
    assert {"whole"} == {mark.name for each in parameters for mark in each.marks}
    assert list(range(8)) == sorted([*whole, *chosen])
