"""What each sandbox uses: measured from outside every few seconds, and kept for a while."""
