-- The bank's own tables. The source application writes them; riverrun follows their changes.
create table if not exists customers(
    customer_id text primary key,
    name text not null,
    phone text not null,
    city text not null
);
create table if not exists accounts(
    account_id text primary key,
    customer_id text not null references customers,
    card text not null,
    opening_cents bigint not null,
    overdraft_cents bigint not null
);
-- Nothing is ever changed here: what was wrong is booked the other way round. It takes whatever channels send, wrong or twice.
create table if not exists transactions(
    entry_id bigint generated always as identity primary key,
    account_id text not null references accounts,
    ref text,
    kind text,
    cents bigint,
    at timestamptz,
    card text,
    city text,
    merchant text,
    transfer_id text
);
-- Its records are keyed by the account, which is not the primary key: Postgres is to write down whole rows.
alter table transactions replica identity full;
