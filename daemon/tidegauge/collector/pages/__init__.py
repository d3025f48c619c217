"""The collector's web pages: a module a page. Each says what it shows once, for the page and for its live updates."""
