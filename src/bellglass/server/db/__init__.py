"""The database: tables, engine, the one writer thread, migrations."""
