"""Published ports, and the single-use tokens of them that were spent."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "published_ports",
        sa.Column("sandbox_id", sa.String(length=32), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("visibility", sa.String(length=16), nullable=False),
        sa.Column("host_header", sa.String(length=256), nullable=True),
        sa.Column("frame_ancestors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("http2", sa.Boolean(), nullable=False),
        sa.Column("address", sa.String(length=15), nullable=True),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("updated_at", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(
            ["sandbox_id"], ["sandboxes.id"], name=op.f("fk_published_ports_sandbox_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sandbox_id", "port", name=op.f("pk_published_ports")),
        sa.UniqueConstraint("address", name=op.f("uq_published_ports_address")),
    )
    op.create_table(
        "spent_port_tokens",
        sa.Column("sandbox_id", sa.String(length=32), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=False),
        sa.Column("expires_at_unix", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sandbox_id", "port"],
            ["published_ports.sandbox_id", "published_ports.port"],
            name=op.f("fk_spent_port_tokens_sandbox_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("sandbox_id", "port", "token_id", name=op.f("pk_spent_port_tokens")),
        sa.Index("ix_spent_port_tokens_expires_at_unix", "expires_at_unix"),
    )


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
