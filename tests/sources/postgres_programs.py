"""Random changes of the table `t` of the tests."""


def change(cursor, rng, rows):
    """A transaction of some statements, each over about `rows` rows."""
    cursor.execute("BEGIN")
    for _ in range(rng.randrange(1, 4)):
        first = rng.randrange(0, 25000)
        some = f"id BETWEEN {first} AND {first + rows}"
        cursor.execute(
            rng.choice(
                [
                    f"INSERT INTO t SELECT i, 'q', i, 'n' FROM generate_series({first},"
                    f" {first + rows}) i ON CONFLICT DO NOTHING",
                    f"UPDATE t SET kw = {rng.random()} WHERE {some}",
                    f"UPDATE t SET part = part || 'x' WHERE {some}",
                    f"DELETE FROM t WHERE {some}",
                ]
            )
        )
    cursor.execute(rng.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
