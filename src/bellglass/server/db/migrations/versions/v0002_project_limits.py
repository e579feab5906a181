"""Limits of projects, and an index of the sandboxes that count against them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "project_limits",
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("sandboxes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_project_limits_project_id")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_project_limits")),
    )
    live = sa.text("state IN ('creating', 'running', 'stopping')")
    op.create_index(
        "ix_sandboxes_live", "sandboxes", ["project_id"], unique=False, sqlite_where=live, postgresql_where=live
    )


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
