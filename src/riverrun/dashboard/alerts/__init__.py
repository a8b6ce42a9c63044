"""The alerts page: the ledger followed, as a page sees it, live, and what people say to it."""
