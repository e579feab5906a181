"""Projects and their keys; the admin key's business."""
