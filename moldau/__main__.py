"""`python -m moldau`: the `moldau` command, where its script is not on the path."""

from moldau.cli.main import main

if __name__ == "__main__":
    main()
