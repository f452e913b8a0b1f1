"""The web page: its files are in `assets`, as the browser gets them. The API serves them."""
