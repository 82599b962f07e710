"""`python -m api`: see `api.main`."""

from api.main import main

if __name__ == "__main__":
    main()
