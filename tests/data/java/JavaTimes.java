import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Date;
import org.apache.ignite.Ignition;
import org.apache.ignite.client.ClientCache;
import org.apache.ignite.client.IgniteClient;

/**
 * Writes times into a cache, as objects of every class for them: JavaTimes ADDRESS CACHE TIMESTAMP...
 *
 * Each argument behind the cache is a time, written as YYYY-MM-DD hh:mm:ss and taken by the time zone of this program;
 * it becomes the entry with the number of its place.
 */
public class JavaTimes {
    public static class Times {
        Date date;
        java.sql.Date day;
        java.sql.Date late;
        Timestamp timestamp;
        Time time;
        LocalDate localDate;
        LocalDateTime localDateTime;
        Instant instant;
    }

    public static void main(String[] args) throws Exception {
        try (IgniteClient client = Ignition.startClient(Connection.to(args[0]))) {
            ClientCache<Integer, Times> cache = client.getOrCreateCache(args[1]);
            for (int i = 2; i < args.length; i++) {
                Times times = new Times();
                times.timestamp = Timestamp.valueOf(args[i]);
                times.date = new Date(times.timestamp.getTime());
                times.day = java.sql.Date.valueOf(args[i].substring(0, 10));
                times.late = new java.sql.Date(times.timestamp.getTime());
                times.time = Time.valueOf(args[i].substring(11));
                times.localDateTime = LocalDateTime.parse(args[i].replace(' ', 'T'));
                times.localDate = times.localDateTime.toLocalDate();
                times.instant = times.localDateTime.toInstant(ZoneOffset.UTC);
                cache.put(i - 2, times);
            }
        }
    }
}
