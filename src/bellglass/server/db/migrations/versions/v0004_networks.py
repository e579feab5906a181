"""What a sandbox may reach is a document now, with a count of its changes; it was one word."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A new column beside the old one: SQLite changes a column's type only by copying the table, and dropping the old
    # table would take the labels with it.
    op.add_column("sandboxes", sa.Column("network_new", sa.JSON(), nullable=False, server_default='"deny"'))
    op.add_column("sandboxes", sa.Column("network_generation", sa.Integer(), nullable=False, server_default="1"))
    op.execute(sa.text("UPDATE sandboxes SET network_new = '\"' || network || '\"'"))
    op.drop_column("sandboxes", "network")
    op.alter_column("sandboxes", "network_new", new_column_name="network")


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
