// Kafka Streams: one process, two stream threads, RocksDB, a changelog topic.
//
// Promise: exactly once (exactly_once_v2), as riverrun's. Emission: at each commit, every 100 ms (that promise's default), a row
// for each key that changed since the last one or fell out of the cache (10 MB, its default).

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.WindowStore;

public final class KafkaStreamsJob {
    @JsonIgnoreProperties(ignoreUnknown = true)
    public static final class Reading {
        public String house_id;
        public double load_kw;
        public String at;

        long time() {
            return Instant.parse(at).toEpochMilli();
        }
    }

    record State(double total, long count, long last) {
        State add(Reading reading) {
            return new State(total + reading.load_kw, count + 1, Math.max(last, reading.time()));
        }
    }

    private static final ObjectReader READER = new ObjectMapper().readerFor(Reading.class);

    private static Reading parse(byte[] value) {
        try {
            return READER.readValue(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Serde<Reading> readings() {
        // Nothing writes readings.
        return Serdes.serdeFrom((topic, reading) -> new byte[0], (topic, value) -> parse(value));
    }

    private static Serde<State> states() {
        return Serdes.serdeFrom(
                (topic, state) -> state == null
                        ? null
                        : ByteBuffer.allocate(24).putDouble(state.total).putLong(state.count).putLong(state.last).array(),
                (topic, bytes) -> {
                    if (bytes == null) {
                        return null;
                    }
                    ByteBuffer from = ByteBuffer.wrap(bytes);
                    return new State(from.getDouble(), from.getLong(), from.getLong());
                });
    }

    private static byte[] row(String house, long start, State state) {
        String text = "{\"house_id\":\"" + house + "\",\"minute\":" + start + ",\"load_kw\":" + state.total / state.count
                + ",\"last\":" + state.last + "}";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, System.getenv("BENCH_ID"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getenv("BENCH_SERVERS"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getenv("BENCH_FOLDER"));
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);

        StreamsBuilder builder = new StreamsBuilder();
        Materialized<String, State, WindowStore<Bytes, byte[]>> store =
                Materialized.<String, State, WindowStore<Bytes, byte[]>>as("averages")
                        .withKeySerde(Serdes.String())
                        .withValueSerde(states());
        builder.stream(
                        "readings",
                        Consumed.with(Serdes.String(), readings())
                                .withTimestampExtractor((record, before) -> ((Reading) record.value()).time()))
                .groupByKey(Grouped.with(Serdes.String(), readings()))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofMinutes(2)))
                .aggregate(() -> new State(0, 0, 0), (house, reading, state) -> state.add(reading), store)
                .toStream()
                .map((key, state) -> org.apache.kafka.streams.KeyValue.pair(
                        key.key(), row(key.key(), key.window().start(), state)))
                .to(System.getenv("BENCH_OUTPUT"), Produced.with(Serdes.String(), Serdes.ByteArray()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
