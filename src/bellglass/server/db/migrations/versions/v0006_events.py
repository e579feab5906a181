"""Events: what was the outbox, to be read by project and by sandbox, and how far each sink has them."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.String(length=32), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("sandbox_id", sa.String(length=32), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    names = "CASE kind WHEN 'sandbox.network' THEN 'network.changed' WHEN 'sandbox.refused' THEN 'sandbox.undone'"
    op.execute(
        "INSERT INTO events (seq, at, type, project_id, sandbox_id, data)"
        f" SELECT seq, at, {names} ELSE kind END, project_id, sandbox_id, data FROM outbox"
    )
    op.drop_table("outbox")
    op.create_index(op.f("ix_events_at"), "events", ["at"])
    op.create_index(op.f("ix_events_project_id_seq"), "events", ["project_id", "seq"])
    op.create_index(op.f("ix_events_sandbox_id_seq"), "events", ["sandbox_id", "seq"])
    op.create_table(
        "event_sinks",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_event_sinks")),
    )


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
