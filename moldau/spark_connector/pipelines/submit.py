"""What `spark-submit` runs: `spark-submit --master … submit.py FILE`.

Owns nothing but the way into `run_pipelines`; where to run and with what is spark-submit's word.
Must stay a script that can be run by its path. Progress is a line per batch in the driver's log.
"""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the pipelines of a file; the exit status."""
    from rich.console import Console

    from moldau.spark_connector.errors import PipelineError, PipelineFileError
    from moldau.spark_connector.pipelines.pipeline_file import load_pipelines
    from moldau.spark_connector.pipelines.runner import RunOptions, run_pipelines
    from moldau.spark_connector.pipelines.running import ProgressView
    from moldau.text import one_line

    parser = argparse.ArgumentParser(
        prog="submit.py", description="Run the pipelines of a file under spark-submit."
    )
    parser.add_argument("file", help="the pipelines, in YAML")
    wanted = parser.parse_args(arguments)
    view = ProgressView(Console(stderr=True), None)
    try:
        run_pipelines(
            load_pipelines(wanted.file), RunOptions(observer=view.batch_done, say=view.say)
        )
    except PipelineFileError as error:
        print(*map(one_line, str(error).split("\n")), sep="\n", file=sys.stderr)
        return 2
    except PipelineError as error:
        print(f"moldau: {one_line(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
