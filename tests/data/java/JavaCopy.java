import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import org.apache.ignite.Ignition;
import org.apache.ignite.cache.query.SqlFieldsQuery;
import org.apache.ignite.client.IgniteClient;

/**
 * Copies the rows of a table into another one with the same columns: JavaCopy ADDRESS FROM TO.
 *
 * Prints the classes of the values of each column, a line each.
 */
public class JavaCopy {
    public static void main(String[] args) throws Exception {
        try (IgniteClient client = Ignition.startClient(Connection.to(args[0]))) {
            List<List<?>> rows = client.query(new SqlFieldsQuery("SELECT * FROM " + args[1])).getAll();
            List<TreeSet<String>> classes = new ArrayList<>();
            for (List<?> row : rows) {
                String marks = String.join(", ", Collections.nCopies(row.size(), "?"));
                SqlFieldsQuery insert = new SqlFieldsQuery("INSERT INTO " + args[2] + " VALUES (" + marks + ")");
                client.query(insert.setArgs(row.toArray())).getAll();
                for (int i = 0; i < row.size(); i++) {
                    if (classes.size() <= i)
                        classes.add(new TreeSet<>());
                    if (row.get(i) != null)
                        classes.get(i).add(row.get(i).getClass().getSimpleName());
                }
            }
            for (TreeSet<String> names : classes)
                System.out.println(String.join(" ", names));
        }
    }
}
