"""The page of a run: what is known of it, read where its logs are, and the HTML that shows it."""
