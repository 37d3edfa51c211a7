"""The short form of parameters: names, bounds and help behind the type."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.main

from moldau.cli.parameters import Within, spell_out

Alias = Annotated[str | None, "What it is."]


def colors(incomplete: str) -> list[str]:
    return [each for each in ("red", "blue") if each.startswith(incomplete)]


def parameters_of(tree: typer.Typer) -> dict[str, Any]:
    spell_out(tree)
    command: Any = typer.main.get_command(tree)
    return {each.name: each for each in command.params}


def tree_with(command: Any) -> typer.Typer:
    tree = typer.Typer(add_completion=False)
    tree.command()(command)
    return tree


def test_option_without_names_has_that_of_its_parameter() -> None:
    def command(dry_run: Annotated[bool, "Only show it."] = False, what: Alias = None) -> None: ...

    found = parameters_of(tree_with(command))
    assert (found["dry_run"].opts, found["dry_run"].secondary_opts) == (["--dry-run"], [])
    assert found["dry_run"].help == "Only show it."
    assert (found["what"].opts, found["what"].help) == (["--what"], "What it is.")


def test_names_begin_with_dashes_and_replace_that_of_the_parameter() -> None:
    def command(again: Annotated[bool, "--watch -w", "Again and again."] = False) -> None: ...

    assert parameters_of(tree_with(command))["again"].opts == ["--watch", "-w"]


def test_bounds_may_be_open_above() -> None:
    def command(
        seconds: Annotated[float, Within(0.5), "How long."] = 1.0,
        port: Annotated[int | None, Within(1, 65_535), "Where."] = None,
    ) -> None: ...

    found = parameters_of(tree_with(command))
    assert (found["seconds"].type.min, found["seconds"].type.max) == (0.5, None)
    assert (found["port"].type.min, found["port"].type.max) == (1, 65_535)


def test_arguments_have_no_default_or_say_what_they_are_like() -> None:
    def command(
        name: Annotated[str, "Whose."],
        parts: Annotated[list[str] | None, "[PART]…", "Some."] = None,
    ) -> None: ...

    found = parameters_of(tree_with(command))
    assert [each.param_type_name for each in found.values()] == ["argument", "argument"]
    assert (found["name"].required, found["parts"].required) == (True, False)
    assert (found["name"].metavar, found["parts"].metavar) == (None, "[PART]…")


def test_what_an_option_is_like_stands_behind_its_names() -> None:
    def command(owner: Annotated[str | None, "--owner -o User:NAME", "Whose."] = None) -> None: ...

    found = parameters_of(tree_with(command))["owner"]
    assert (found.opts, found.metavar) == (["--owner", "-o"], "User:NAME")


def test_function_completes_the_words_of_its_parameter() -> None:
    def command(color: Annotated[str | None, colors, "Which."] = None) -> None: ...

    found = parameters_of(tree_with(command))["color"]
    words = found.shell_complete(typer.Context(typer.main.get_command(tree_with(command))), "r")
    assert [each.value for each in words] == ["red"]


def test_trees_below_are_reached_and_stay_as_they_are() -> None:
    def command(
        name: Annotated[str, typer.Argument(help="Whose.")],
        force: Annotated[bool, "Even then."] = False,
    ) -> None: ...

    above, below = typer.Typer(), tree_with(command)
    above.add_typer(below, name="below")
    spell_out(above)
    spell_out(above)
    found = parameters_of(below)
    assert found["name"].param_type_name == "argument"
    assert found["force"].opts == ["--force"]
