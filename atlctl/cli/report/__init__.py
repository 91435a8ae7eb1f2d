"""What `atlctl report` collects, and how it is told on the page."""
