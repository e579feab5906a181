"""The schema's history, one file a step under `versions/`. HEAD is the newest; a test holds it to the files."""

HEAD = "0010"
