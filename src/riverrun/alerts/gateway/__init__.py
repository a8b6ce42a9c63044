"""An SMS gateway on this machine that speaks Infobip's HTTP API, and shows the phones."""
